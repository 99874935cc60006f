package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// This file holds the check of values: P3 of the lease protocol, and its
// exceptions after a failover.

// wrong says why a caller must not have got its value; "" if it may.
func (c *checker) wrong(g *Get) string {
	o := g.Origin
	switch {
	case o == nil:
		return "no value that was ever made: " + g.Damage
	case o.Key != g.Key:
		return fmt.Sprintf("it is of key %q", o.Key)
	case kindOf(g.Key) == kindPrivate && (o.Proc != g.Proc || o.Caller != g.Caller):
		return fmt.Sprintf("it is private to caller %d of process %d", o.Caller, o.Proc)
	}
	at := c.latest(o)
	if kindOf(g.Key) == kindReserve && g.Source == guard.FromReserve.String() {
		return c.wrongReserve(g, at)
	}
	names := append(tagsOf(g.Key), g.Key)
	for _, name := range names {
		if ch := c.barriers[name].before(g.Start, at); ch != nil {
			return fmt.Sprintf("%s, but process %d called %s of %q at %s, which returned at %s",
				describe(o), ch.Proc, ch.Op, ch.Key, clock(ch.Start), clock(ch.End))
		}
	}
	for _, name := range names {
		ch := c.barriers[name].doubtful(g.Start, at)
		if ch == nil {
			continue
		}
		c.StaleAfterLost++
		if !c.lossy[ch] && len(c.Lost) < maxFindings {
			c.Lost = append(c.Lost, fmt.Sprintf("process %d called %s of %q at %s, which returned at %s; process %d called Get at %s and got, from %s, a value %s",
				ch.Proc, ch.Op, ch.Key, clock(ch.Start), clock(ch.End), g.Proc, clock(g.Start), g.Source, describe(o)))
		}
		c.lossy[ch] = true
		break // it is one older value
	}
	return ""
}

// wrongReserve is wrong for a value of the reserve: a process that Redis does not answer does
// not hear of the changes of others, and keeps a value for as long as the value's terms and
// ten seconds after Redis is back allow.
func (c *checker) wrongReserve(g *Get, at Stamp) string {
	if ch := c.own[ownKey{g.Proc, g.Key}].before(g.Start, at); ch != nil {
		return fmt.Sprintf("%s, but the process itself called %s at %s, which returned at %s, error %q", describe(g.Origin), ch.Op, clock(ch.Start), clock(ch.End), ch.Err)
	}
	if age := g.Start.Sub(g.Origin.At); at != forever && age > c.Terms.HardTTL+afterOutage {
		return fmt.Sprintf("%s, %v before", describe(g.Origin), age)
	}
	return ""
}

// afterOutage is how long the reserve serves values beyond an outage.
const afterOutage = 10 * time.Second

// latest is the last instant at which the value can have become current: when
// the fetch started, or the Set returned. A Set that failed may do so any time.
func (c *checker) latest(o *Origin) Stamp {
	if !o.Set {
		return o.At
	}
	if ch := c.sets[source{o.Proc, o.Seq}]; ch != nil && ch.acknowledged() {
		return ch.End
	}
	return forever
}

const forever = Stamp(1<<63 - 1)

func describe(o *Origin) string {
	if o.Set {
		return fmt.Sprintf("set by process %d, called at %s", o.Proc, clock(o.At))
	}
	return fmt.Sprintf("fetched by process %d from %s", o.Proc, clock(o.At))
}

func clock(s Stamp) string { return time.Unix(0, int64(s)).UTC().Format("15:04:05.000000") }

// Changes acknowledged so long before or after a failover may be lost by it: it
// takes a while until a dead master is replaced, and until one that lives is
// told that it was.
const aroundFailover = 5 * time.Second

// firmAt is when a change is certain to count: at once, unless a failover may
// have lost it.
func (c *checker) firmAt(ch *Change) (firm Stamp) {
	for _, at := range c.Failovers {
		from := at.Add(-aroundFailover)
		if f := c.faultAt(at); f != nil {
			from = min(from, f.Start.Add(-time.Second))
		}
		until := at.Add(aroundFailover)
		if ch.End >= from && ch.Start <= until {
			firm = max(firm, until.Add(c.Terms.HardTTL))
		}
	}
	return firm
}

// barriers are the acknowledged Deletes and Sets of one key, or the DeleteTags of
// one tag. A nil one is empty.
type barriers struct {
	firm    []*Change // by their end
	newest  []*Change // newest[i] is the one of firm[:i+1] that started last
	doubted []doubted
}

type doubted struct {
	*Change
	firm Stamp // from then on it counts
}

func (b *barriers) add(ch *Change, firm Stamp) {
	if firm > 0 {
		b.doubted = append(b.doubted, doubted{ch, firm})
		return
	}
	b.firm = append(b.firm, ch)
}

func addTo[K comparable](all map[K]*barriers, key K, ch *Change, firm Stamp) {
	b := all[key]
	if b == nil {
		b = &barriers{}
		all[key] = b
	}
	b.add(ch, firm)
}

func (b *barriers) sort() {
	slices.SortFunc(b.firm, func(x, y *Change) int { return cmp.Compare(x.End, y.End) })
	var newest *Change
	for _, ch := range b.firm {
		if newest == nil || ch.Start > newest.Start {
			newest = ch
		}
		b.newest = append(b.newest, newest)
	}
}

// before returns a change that had returned before call, and had started after
// a value that is no younger than at: that value is gone.
func (b *barriers) before(call, at Stamp) *Change {
	if b == nil {
		return nil
	}
	n := sort.Search(len(b.firm), func(i int) bool { return b.firm[i].End >= call })
	if n > 0 && b.newest[n-1].Start > at {
		return b.newest[n-1]
	}
	for _, d := range b.doubted {
		if d.End < call && d.Start > at && call > d.firm {
			return d.Change
		}
	}
	return nil
}

// doubtful is before for the changes that may have been lost.
func (b *barriers) doubtful(call, at Stamp) *Change {
	if b == nil {
		return nil
	}
	for _, d := range b.doubted {
		if d.End < call && d.Start > at {
			return d.Change
		}
	}
	return nil
}
