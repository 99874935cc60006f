package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// Reserve configures a guard's reserve: the last good values of this process, encoded, for
// use while Redis does not answer. It is on by default.
//
// While Redis is away, a value that is still fresh by its own terms is served from the
// reserve. A stale one is served at once as well, if Policy.Stale or Policy.StaleIfError
// allows it, and is refreshed by one fetch in this process. A caller is served after about
// 20 ms if its read gets no answer. A value that is fetched meanwhile goes into the
// reserve. So the origin sees at most one fetch per key, TTL and process, and
// Policy.MaxUnguarded fetches at once.
//
// The reserve weakens the barrier of Delete and Set for a process that can't hear Redis: it
// may serve a value that another process has deleted meanwhile, until the value's TTL and
// stale time have passed. A change in this process always removes the value here. Guards
// that need the barrier through outages turn the reserve off. A guard with FailClosed has
// no reserve.
type Reserve struct {
	// MaxBytes bounds the memory of the values, encoded, with their keys and an allowance of
	// 640 bytes each. A value that has to be decoded counts twice. Default 32 MiB; Off turns
	// the reserve off: without Redis, each call then waits for a fetch.
	MaxBytes int
	// MaxEntries bounds the number of values. Default: only MaxBytes bounds it.
	MaxEntries int
}

func (r Reserve) validate() error {
	if r.MaxBytes < 0 && r.MaxBytes != Off || r.MaxEntries < 0 {
		return fmt.Errorf("guard: Policy.Reserve has MaxBytes %d and MaxEntries %d: neither may be negative (set MaxBytes to Off to have no reserve)", r.MaxBytes, r.MaxEntries)
	}
	return nil
}

const (
	// defaultReserve is Reserve.MaxBytes by default.
	defaultReserve = 32 << 20
	// reserveAllowance is about the memory of a value besides its bytes and its key.
	reserveAllowance = 640
	// reserveWays is how many values a set of the table holds.
	reserveWays = 8
	// refreshShare is the part of Policy.MaxUnguarded that refreshes of the reserve's values
	// may take up. Callers that wait have the rest.
	refreshShare = 4
	// recovery is for how long after an outage the values from before it stand in for
	// entries that Redis has lost, while they are refreshed.
	recovery = 10 * time.Second
	// sparsest is how many places there may be for each value.
	sparsest = 16
	// firstSets is how many sets a table starts with. It grows with the values.
	firstSets = 16
)

// A reserve keeps the last good values of a guard, by keys. It is a set-associative table:
// readers take no lock, as a hit that the store answers looks into it, too.
type reserve struct {
	coherence *coherence
	raw       bool // values are bytes as they are stored: decoding copies nothing

	table  atomic.Pointer[reserveTable]
	mean   atomic.Int64 // how long the store takes to answer a read, lately
	heard  atomic.Int64 // when the store has answered a read, since began
	hedged atomic.Int64 // when a reader has given up waiting, since began

	// era is the feed's epoch as of the last answer of the store. It stands still during an
	// outage. A value of another era may have missed a change.
	era atomic.Uint64

	mu         sync.Mutex // guards memory only: changes of the table
	maxBytes   int
	maxEntries int
	bytes      int
	entries    int
	hand       int // the next set to make room in

	before     atomic.Uint64 // the era of the last outage
	changedAt  atomic.Int64  // when the era changed, since began
	refreshing chan struct{} // holds a place for each refresh under way

	inUse    atomic.Bool
	entered  atomic.Int64 // since began; while inUse
	lastUsed atomic.Int64 // since began
	lastAway atomic.Int64 // since began: the store was known to be away, and not only silent
	began    time.Time
	hits     atomic.Uint64
}

type reserveTable struct{ sets []reserveSet } // a power of two of them

type reserveSet [reserveWays]atomic.Pointer[reserved]

// A reserved is one value of a reserve.
type reserved struct {
	*read // reading is as of the time at
	hash  uint64
	key   string
	era   uint64
	since since
	size  int
	alien bool        // it was fetched without the store, which never had it
	used  atomic.Bool // since the hand came by
}

func newReserve(c *coherence, cfg Reserve, raw bool, maxUnguarded int) *reserve {
	s := &reserve{
		coherence: c, raw: raw, maxBytes: cfg.MaxBytes, maxEntries: cfg.MaxEntries, began: time.Now(),
		refreshing: make(chan struct{}, max(1, maxUnguarded/refreshShare)),
	}
	if s.maxEntries == 0 {
		s.maxEntries = max(1, s.maxBytes/reserveAllowance)
	}
	s.table.Store(&reserveTable{make([]reserveSet, firstSets)})
	return s
}

func (t *reserveTable) set(hash uint64) *reserveSet {
	return &t.sets[(hash>>8)&uint64(len(t.sets)-1)] // the low bits choose the stamp
}

func (s *reserve) find(hash uint64, key string) *reserved {
	set := s.table.Load().set(hash)
	for i := range set {
		if v := set[i].Load(); v != nil && v.hash == hash && v.key == key {
			return v
		}
	}
	return nil
}

// get returns the value of the key if it may be used, as old as it is now, or nil.
func (s *reserve) get(key string) *read {
	v := s.find(s.coherence.hash(key), key)
	if v == nil || v.era != s.era.Load() || v.since.changed() {
		return nil
	}
	v.used.Store(true)
	return v.read
}

// put keeps a copy of an entry that was read or stored, not before the time at. It keeps
// none if the entry may have been changed since the ticket was taken.
func (s *reserve) put(key string, t ticket, r *store.Reading, at time.Time) {
	if t.epoch == 0 || t.epoch != s.era.Load() {
		s.outdate(t.hash, key, r)
		return
	}
	t.era = t.epoch
	s.keep(key, t, r, at, false)
}

// outdate drops the value of a key if the store has answered that it has another entry, or
// none. This process may not have heard of the change.
func (s *reserve) outdate(hash uint64, key string, r *store.Reading) {
	v := s.find(hash, key)
	if v != nil && !v.alien && (!r.Found || r.Entry.Version != v.reading.Entry.Version) {
		s.remove(hash, key)
	}
}

// keep is put for a value of the ticket's era.
func (s *reserve) keep(key string, t ticket, r *store.Reading, at time.Time, alien bool) {
	if !r.Found || r.Entry.Kind == store.Bypass || r.Left <= 0 {
		return
	}
	old := s.find(t.hash, key)
	if old != nil && old.reading.Entry.Version == r.Entry.Version && old.reading.Entry.Flags == r.Entry.Flags &&
		old.era == t.era && !old.since.changed() {
		if !old.used.Load() {
			old.used.Store(true)
		}
		return
	}
	since, ok := s.coherence.since(t, r.Entry.Tags)
	size := s.sizeOf(key, &r.Entry)
	if !ok || size > s.maxBytes {
		s.remove(t.hash, key)
		return
	}
	v := &reserved{read: &read{reading: r.Keep(), at: at, reserved: true}, hash: t.hash, key: key, era: t.era, since: since, size: size, alien: alien}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.placeLocked(v)
	for s.bytes > s.maxBytes || s.entries > s.maxEntries {
		s.makeRoomLocked(v)
	}
}

// sizeOf is about the memory that a value takes up once it has been decoded.
func (s *reserve) sizeOf(key string, e *store.Entry) int {
	size := reserveAllowance + len(key) + store.HeaderSize + len(e.Payload)
	for _, tag := range e.Tags {
		size += 2*len(tag) + 32
	}
	if !s.raw || e.Flags&store.FlagCompressed != 0 {
		size += encodedSize(e)
	}
	return size
}

// placeLocked puts v in place of the key's last value, into a free place, or in place of
// the value of its set that is least worth keeping. The table grows before it drops a value
// that is of use, as far as that pays.
func (s *reserve) placeLocked(v *reserved) {
	if table := s.table.Load(); s.entries > len(table.sets)*reserveWays/4 { // or many a set is full
		s.growLocked(table)
	}
	for {
		table := s.table.Load()
		place, worth := table.set(v.hash).leastWorth(v)
		if worth < unused || len(table.sets)*reserveWays >= sparsest*(s.entries+1) {
			s.setLocked(&table.set(v.hash)[place], v)
			return
		}
		s.growLocked(table)
	}
}

// The worth of keeping a place of a set as it is. A new value takes the place of least worth.
const (
	own    = iota // the key's last value
	free          // no value
	void          // a value that can't be used any more
	unused        // a value that was not used lately
	needed
)

// leastWorth returns the place for v.
func (set *reserveSet) leastWorth(v *reserved) (place, least int) {
	place, least = int(v.hash>>56)%reserveWays, needed
	for i := range set {
		worth := needed
		switch old := set[i].Load(); {
		case old == nil:
			worth = free
		case old.hash == v.hash && old.key == v.key:
			worth = own
		case old.era != v.era || old.since.changed() || old.gone():
			worth = void
		case !old.used.Load():
			worth = unused
		}
		if worth < least {
			place, least = i, worth
		}
	}
	return place, least
}

func (s *reserve) setLocked(place *atomic.Pointer[reserved], v *reserved) {
	if old := place.Load(); old != nil {
		s.bytes -= old.size
		s.entries--
	}
	if v != nil {
		s.bytes += v.size
		s.entries++
	}
	place.Store(v)
}

// makeRoomLocked looks at one more set. It drops the values that were not used since its
// last visit, except the value that the room is made for.
func (s *reserve) makeRoomLocked(newest *reserved) {
	table := s.table.Load()
	s.hand = (s.hand + 1) % len(table.sets)
	set := &table.sets[s.hand]
	for i := range set {
		v := set[i].Load()
		if v == nil || v == newest {
			continue
		}
		if v.used.Swap(false) && !v.gone() && v.era == newest.era {
			continue
		}
		s.setLocked(&set[i], nil)
		if s.bytes <= s.maxBytes && s.entries <= s.maxEntries {
			return
		}
	}
}

// gone reports whether the value's last use is over.
func (v *reserved) gone() bool { return v.waited() >= v.reading.Left }

// growLocked doubles the table. A reader of the old table still finds the values in it.
func (s *reserve) growLocked(old *reserveTable) {
	next := &reserveTable{make([]reserveSet, 2*len(old.sets))}
	for i := range old.sets {
		for j := range old.sets[i] {
			v := old.sets[i][j].Load()
			if v == nil {
				continue
			}
			set := next.set(v.hash)
			for k := range set { // the values of one set go to two
				if set[k].Load() == nil {
					set[k].Store(v)
					break
				}
			}
		}
	}
	s.table.Store(next)
}

func (s *reserve) remove(hash uint64, key string) {
	if s.find(hash, key) == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.table.Load().set(hash)
	for i := range set {
		if v := set[i].Load(); v != nil && v.hash == hash && v.key == key {
			s.setLocked(&set[i], nil)
		}
	}
}

func (s *reserve) size() (entries, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries, s.bytes
}

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

// reserveIdle is for how long the reserve is not used before it counts as left: in a
// cluster some masters may answer all the while.
const reserveIdle = time.Second

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
