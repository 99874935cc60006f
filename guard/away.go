package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

const (
	// recovery is for how long after an outage the values from before it stand in for
	// entries that Redis has lost, while they are refreshed.
	recovery = 10 * time.Second
	// reserveIdle is for how long the reserve is not used before it counts as left: in a
	// cluster some masters may answer all the while.
	reserveIdle = time.Second
)

// A standby serves the values of a guard's reserve while the store does not answer, and soon
// after.
type standby struct {
	reserve *reserve // nil: there is none, and nothing is served
	policy  *Policy
	packer  *packer
	events  *reporter
	ctx     context.Context // the guard's
}

// outcome is the one that the reserve allows while the store does not answer, which
// is why; nil if it allows none.
func (sb *standby) outcome(key string, maxAge time.Duration, why error) *outcome {
	if sb.reserve == nil || maxAge == 0 || !errors.Is(why, store.ErrUnavailable) {
		return nil
	}
	rd := sb.reserve.get(key)
	if rd == nil {
		return nil
	}
	o := sb.judge(key, rd, why)
	if o == nil || maxAge > 0 && (o.entry.Age > maxAge || !o.entry.Fresh()) {
		return nil
	}
	sb.served(why)
	return o
}

// judge is engine.judge for a value of the reserve. A stale value may be served for as long
// as it might be if a fetch had failed.
func (sb *standby) judge(key string, rd *read, why error) *outcome {
	waited := rd.waited()
	r := rd.reading.Keep()
	r.Age, r.Left = r.Age+waited, r.Left-waited
	if r.Left <= 0 {
		return nil
	}
	act := decide(r, sb.policy)
	switch {
	case act == notFound:
		return &outcome{err: ErrNotFound, entry: r}
	case act == fetch && sb.policy.StaleIfError > 0 && servableIfError(r, 0) && (&outcome{err: why}).maskable(sb.policy):
		act = serveStale
	case act == fetch || act == fetchAlone || act == fetchLocal:
		return nil
	}
	value, err := sb.packer.unpack(sb.ctx, key, rd)
	if err != nil {
		return nil
	}
	o := &outcome{value: value, source: FromReserve, entry: r}
	if act == serveStale || r.Age >= dueAt(&r.Entry, sb.policy.Beta) {
		o.refresh = rd
	}
	return o
}

// served notes that a value of the reserve is served.
func (sb *standby) served(why error) {
	s := sb.reserve
	now := int64(time.Since(s.began))
	s.hits.Add(1)
	s.lastUsed.Store(now)
	if errors.Is(why, errSilent) {
		s.hedged.Store(now)
	} else {
		s.lastAway.Store(now)
	}
	if !s.inUse.Load() && s.inUse.CompareAndSwap(false, true) {
		s.entered.Store(now)
		sb.events.report(sb.ctx, cache.ReserveEntered, cache.Event{Err: why})
	}
}

// answered notes that the store has answered.
func (sb *standby) answered() {
	s := sb.reserve
	if s == nil {
		return
	}
	if last, era := s.coherence.feed.Last(), s.era.Load(); last != era && s.era.CompareAndSwap(era, last) {
		// The subscription may come and go while a server starts.
		if now := int64(time.Since(s.began)); now-s.changedAt.Swap(now) > int64(recovery) {
			s.before.Store(era)
		}
	}
	if !s.inUse.Load() {
		return
	}
	now := int64(time.Since(s.began))
	if time.Duration(now-s.lastUsed.Load()) > reserveIdle && s.inUse.CompareAndSwap(true, false) {
		sb.events.report(sb.ctx, cache.ReserveLeft, cache.Event{Duration: time.Duration(now - s.entered.Load())})
	}
}

// keep puts the outcome of one call into the reserve, if there is one.
func (sb *standby) keep(key string, t ticket, o *outcome) {
	if sb.reserve == nil || o.entry == nil || o.source == FromReserve || !o.stored && !errors.Is(o.err, ErrNotFound) {
		return
	}
	at := o.at
	if at.IsZero() {
		at = time.Now()
	}
	sb.reserve.put(key, t, o.entry, at)
}

// outdate drops the reserve's value of a key if a read was answered with another entry, or
// none. Soon after an outage it keeps the values that Redis has lost: see recovering.
func (sb *standby) outdate(key string, r *store.Reading) {
	if s := sb.reserve; s != nil && (r.Seen != "" || !s.awayLately()) {
		s.outdate(s.coherence.hash(key), key, r)
	}
}

// recovering is the outcome for a key that the store has no entry of, soon after an outage:
// the value from before it, while it is refreshed. Else all that Redis has lost would be
// fetched at once.
func (sb *standby) recovering(key string, r *store.Reading) *outcome {
	s := sb.reserve
	if s == nil || r.Seen != "" {
		return nil
	}
	v := s.beforeOutage(key)
	if v == nil {
		return nil
	}
	o := sb.judge(key, v.read, errLost)
	if o == nil || o.err != nil {
		return nil
	}
	s.hits.Add(1)
	o.refresh = v.read
	return o
}

// beforeOutage is the value of a key from before an outage that has ended lately, or nil.
func (s *reserve) beforeOutage(key string) *reserved {
	if !s.awayLately() {
		return nil
	}
	v := s.find(s.coherence.hash(key), key)
	if v == nil || v.era < s.before.Load() || v.since.changed() {
		return nil
	}
	return v
}

// awayLately reports whether there was an outage within the last recovery.
func (s *reserve) awayLately() bool {
	last := s.lastAway.Load()
	return last != 0 && time.Since(s.began)-time.Duration(last) <= recovery
}

// errLost: Redis has come back without the entry.
var errLost = fmt.Errorf("%w: it has lost the entry", store.ErrUnavailable)

// mayRefresh reports whether a refresh of a value of the reserve would find a place.
func (s *reserve) mayRefresh() bool { return len(s.refreshing) < cap(s.refreshing) }

// takeSlot takes one of the slots of fetches without a lease for refreshes of values of the
// reserve. It returns the function that gives the slot back; nil if all are taken.
func (s *reserve) takeSlot(slots *slots) (leave func()) {
	select {
	case s.refreshing <- struct{}{}:
	default:
		return nil
	}
	slot := slots.try()
	if slot == nil {
		<-s.refreshing
		return nil
	}
	return sync.OnceFunc(func() {
		slot()
		<-s.refreshing
	})
}

// errSilent is the error of a read that the store has not answered for so long that a value
// of the reserve is served instead. The read goes on.
var errSilent = fmt.Errorf("%w: no answer for some time", store.ErrUnavailable)

const (
	// hedgeAfter is how long a read is waited for before the reserve is looked into: a
	// caller with a value there waits for 20 ms at most. A store that usually takes longer
	// has hedgeTimes as long as it usually takes.
	hedgeAfter = 15 * time.Millisecond
	hedgeAgain = 100 * time.Microsecond
	// A store that answers other reads meanwhile is waited for so many times as long.
	hedgeTimes = 4
	// hedgeSlack is how late the end of that time may be noticed.
	hedgeSlack = 5 * time.Millisecond
)

// patience is how long a read is waited for now. If another reader has given up since the
// last answer, the store is as silent to this one.
func (s *reserve) patience() time.Duration {
	if s.hedged.Load() > s.heard.Load() {
		return hedgeAgain
	}
	return max(hedgeAfter, hedgeTimes*time.Duration(s.mean.Load()))
}

// took notes the answer to a read that was sent at the given time.
func (s *reserve) took(sent time.Time) {
	d, mean := time.Since(sent), s.mean.Load()
	s.mean.Store(mean + (int64(d)-mean)/8)
	s.heard.Store(int64(sent.Add(d).Sub(s.began)))
}

// silent reports whether the store has been silent for d since begin, where a reader has
// waited for the n-th time so long. If this process notices the end of that time late, it is
// short of CPU, and the answer may be there. If the store has answered other reads, it may
// only be slow; in a cluster it may be another node that has answered.
func (s *reserve) silent(begin time.Time, d time.Duration, n int) bool {
	switch {
	case time.Since(begin) > d+hedgeSlack:
		return false
	case s.heard.Load() > int64(begin.Sub(s.began)):
		return n >= hedgeTimes
	}
	return true
}
