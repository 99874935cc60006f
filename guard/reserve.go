package guard

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

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

// get returns the value of the key if it may be used, as old as it is now, or nil. Outages in
// a row count as one.
func (s *reserve) get(key string) *read {
	v := s.find(s.coherence.hash(key), key)
	if v == nil || v.since.changed() || v.era != s.era.Load() && (v.era < s.before.Load() || !s.awayLately()) {
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
