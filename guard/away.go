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

// This file holds the uses of the reserve while the store does not answer, and soon after.

const (
	// recovery is for how long after an outage the values from before it stand in for
	// entries that Redis has lost, while they are refreshed.
	recovery = 10 * time.Second
	// reserveIdle is for how long the reserve is not used before it counts as left: in a
	// cluster some masters may answer all the while.
	reserveIdle = time.Second
)

// fromReserve is the outcome that the reserve allows while the store does not answer, which
// is why; nil if it allows none.
func (e *engine) fromReserve(key string, maxAge time.Duration, why error) *outcome {
	if e.reserve == nil || maxAge == 0 || !errors.Is(why, store.ErrUnavailable) {
		return nil
	}
	rd := e.reserve.get(key)
	if rd == nil {
		return nil
	}
	o := e.judgeReserved(key, rd, why)
	if o == nil || maxAge > 0 && (o.entry.Age > maxAge || !o.entry.Fresh()) {
		return nil
	}
	e.usesReserve(why)
	return o
}

// judgeReserved is judge for a value of the reserve. A stale value may be served for as long
// as it might be if a fetch had failed.
func (e *engine) judgeReserved(key string, rd *read, why error) *outcome {
	waited := rd.waited()
	r := rd.reading.Keep()
	r.Age, r.Left = r.Age+waited, r.Left-waited
	if r.Left <= 0 {
		return nil
	}
	act := decide(r, &e.policy)
	switch {
	case act == notFound:
		return &outcome{err: ErrNotFound, entry: r}
	case act == fetch && e.policy.StaleIfError > 0 && servableIfError(r, 0) && e.maskable(&outcome{err: why}):
		act = serveStale
	case act == fetch || act == fetchAlone || act == fetchLocal:
		return nil
	}
	value, err := e.packer.unpack(e.ctx, key, rd)
	if err != nil {
		return nil
	}
	o := &outcome{value: value, source: FromReserve, entry: r}
	if act == serveStale || r.Age >= dueAt(&r.Entry, e.policy.Beta) {
		o.refresh = rd
	}
	return o
}

// usesReserve notes that a value of the reserve is served.
func (e *engine) usesReserve(why error) {
	s := e.reserve
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
		e.events.report(e.ctx, cache.ReserveEntered, cache.Event{Err: why})
	}
}

// answered notes that the store has answered.
func (e *engine) answered() {
	s := e.reserve
	if s == nil {
		return
	}
	if last, era := e.coherence.feed.Last(), s.era.Load(); last != era && s.era.CompareAndSwap(era, last) {
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
		e.events.report(e.ctx, cache.ReserveLeft, cache.Event{Duration: time.Duration(now - s.entered.Load())})
	}
}

// keepReserved puts the outcome of one call into the reserve, if there is one.
func (e *engine) keepReserved(key string, t ticket, o *outcome) {
	if e.reserve == nil || o.entry == nil || o.source == FromReserve || !o.stored && !errors.Is(o.err, ErrNotFound) {
		return
	}
	at := o.at
	if at.IsZero() {
		at = time.Now()
	}
	e.reserve.put(key, t, o.entry, at)
}

// keepFetched puts the outcome of a fetch that was made without a lease into the reserve, as
// the entry; nil stands for that of the fetched value.
func (t *turn) keepFetched(entry *store.Entry, r *fill) {
	s := t.f.e.reserve
	if s == nil || t.source != UnguardedFetch || r.private || entry == nil && len(r.entry.Payload) > t.f.e.policy.MaxBytes {
		return
	}
	if entry == nil {
		entry = t.entryOf(r)
	}
	if entry.FreshFor <= 0 {
		return
	}
	kept := *entry
	kept.Took = r.took
	kept.Version = randomToken()
	s.keep(t.f.key, t.ticket, &store.Reading{Entry: kept, Found: true, Left: kept.TTL}, time.Now(), true)
}

// fetchedMeanwhile is the outcome for a flight that is to fetch without a lease, if the
// reserve has a value by now, or when the refresh that is under way has brought one.
func (f *flight) fetchedMeanwhile(ctx context.Context, why error) *outcome {
	if f.e.reserve == nil || f.kind != foreground {
		return nil
	}
	if refresh := f.e.flights.refreshOf(f.key); refresh != nil && refresh.reserved {
		select {
		case <-refresh.settled:
		case <-ctx.Done():
			return closedOutcome()
		}
	}
	o := f.e.fromReserve(f.key, anyAge, why)
	if o != nil {
		o.moment = f.e.sequence.Add(1)
	}
	return o
}

// outdate drops the reserve's value of a key if a read was answered with another entry, or
// none. Soon after an outage it does not: see recovering.
func (e *engine) outdate(key string, r *store.Reading) {
	if s := e.reserve; s != nil && !s.awayLately() {
		s.outdate(s.coherence.hash(key), key, r)
	}
}

// recovering is the outcome for a key that the store has no entry of, soon after an outage:
// the value from before it, while it is refreshed. Else all that Redis has lost would be
// fetched at once.
func (e *engine) recovering(key string, r *store.Reading) *outcome {
	s := e.reserve
	if s == nil || r.Seen != "" || !s.awayLately() {
		return nil
	}
	v := s.find(s.coherence.hash(key), key)
	if v == nil || v.era < s.before.Load() || v.since.changed() {
		return nil
	}
	o := e.judgeReserved(key, v.read, errLost)
	if o == nil || o.err != nil {
		return nil
	}
	s.hits.Add(1)
	o.refresh = v.read
	return o
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

// takeSlot gives a leader that refreshes values of the reserve one of the slots of fetches
// without a lease, unless all are taken. The values are served meanwhile.
func (l *leader) takeSlot() bool {
	s := l.e.reserve
	select {
	case s.refreshing <- struct{}{}:
	default:
		return false
	}
	leave := l.e.slots.try()
	if leave == nil {
		<-s.refreshing
		return false
	}
	l.slot = sync.OnceFunc(func() {
		leave()
		<-s.refreshing
	})
	l.ctx = context.WithValue(l.ctx, slotKey{}, l.e.slots)
	return true
}

func (l *leader) leaveSlot() {
	if l.slot != nil {
		l.slot()
	}
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
