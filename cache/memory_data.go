package cache

import (
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// memoryData is what joined Memory stores share: it plays the Redis server.
type memoryData struct {
	// mu guards all of it, all its keys, and the fields of Memory that say so. It
	// is never held while anything is waited for.
	mu    sync.Mutex
	keys  map[string]*memoryKey
	alive map[Process]struct{}
	feeds feeds // has a lock of its own
	tags  memoryTags

	// lru holds the keys that have an entry; bytes is what those cost. All
	// removals go through it, see evicted.
	lru      *simplelru.LRU[string, *memoryKey]
	bytes    int64
	maxBytes int64

	// ring has all keys in no order, hand is where the sweep goes on.
	ring []*memoryKey
	hand int
}

// sweepKeys are looked at with each write. More than one, so that expired keys
// go faster than new ones come.
const sweepKeys = 4

// entryAllowance is about what an entry takes up besides its bytes and its key.
const entryAllowance = 256

func newMemoryData(opts MemoryOptions) (*memoryData, error) {
	d := &memoryData{
		keys:     map[string]*memoryKey{},
		alive:    map[Process]struct{}{},
		maxBytes: opts.MaxBytes,
		tags:     newMemoryTags(),
	}
	var err error
	d.lru, err = simplelru.NewLRU(opts.MaxEntries, d.evicted)
	return d, err
}

// find returns the key without what has expired, or nil if nothing is left.
func (d *memoryData) find(key string, now time.Time) *memoryKey {
	k := d.keys[key]
	if k != nil && d.purge(k, now) {
		return nil
	}
	return k
}

// make is find, and makes the key if need be. Whoever may leave it empty calls
// tidy.
func (d *memoryData) make(key string, now time.Time) *memoryKey {
	d.sweep(now)
	k := d.find(key, now)
	if k == nil {
		k = &memoryKey{name: key, place: len(d.ring)}
		d.keys[key] = k
		d.ring = append(d.ring, k)
	}
	return k
}

// sweep drops what has expired from a few keys.
func (d *memoryData) sweep(now time.Time) {
	for range sweepKeys {
		if d.hand >= len(d.ring) {
			d.hand = 0 // and no further: there may be none, or few
			return
		}
		if !d.purge(d.ring[d.hand], now) {
			d.hand++
		}
	}
}

// purge drops what has expired from k, and k itself if nothing is left: then it
// reports true.
func (d *memoryData) purge(k *memoryKey, now time.Time) bool {
	if k.entry != nil && passed(k.entryEnds, now) {
		d.drop(k)
	}
	k.purge(now)
	return d.tidy(k)
}

// tidy forgets k if it is empty, and reports whether it did.
func (d *memoryData) tidy(k *memoryKey) bool {
	if !k.empty() {
		return false
	}
	if d.keys[k.name] == k {
		delete(d.keys, k.name)
		last := len(d.ring) - 1
		d.ring[k.place] = d.ring[last]
		d.ring[k.place].place = k.place
		d.ring[last] = nil
		d.ring = d.ring[:last]
	}
	return true
}

// put stores b, which is never changed afterwards, and makes room for it.
func (d *memoryData) put(k *memoryKey, b []byte, ends time.Time) {
	d.bytes -= k.cost()
	k.entry, k.entryEnds = b, ends
	d.bytes += k.cost()
	d.lru.Add(k.name, k)
	for d.bytes > d.maxBytes {
		d.lru.RemoveOldest()
	}
}

// drop removes k's entry, if it has one.
func (d *memoryData) drop(k *memoryKey) { d.lru.Remove(k.name) }

// evicted is called by lru for each entry that leaves it, asked to or not. What
// else the key holds stays: a lease above all.
func (d *memoryData) evicted(_ string, k *memoryKey) {
	d.bytes -= k.cost()
	k.entry = nil
	d.tidy(k)
}

// storable reports why an entry can't be stored, if so.
func (d *memoryData) storable(key string, e *Entry, b []byte) error {
	if e.TTL < time.Millisecond {
		return fmt.Errorf("%w: an entry's TTL of %v is below 1ms", ErrRefused, e.TTL)
	}
	if size := entryCost(key, b); size > d.maxBytes {
		return fmt.Errorf("%w: an entry of %d bytes is larger than MemoryOptions.MaxBytes allows", ErrRefused, len(b))
	}
	return nil
}

func entryCost(key string, b []byte) int64 { return int64(len(key)) + int64(len(b)) + entryAllowance }

// entryTTL is the expiry that Redis would be told.
func entryTTL(e *Entry) time.Duration { return time.Duration(millis(e.TTL)) * time.Millisecond }

// passed reports whether a time has come; the zero time never does.
func passed(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

// pttlAt is what PTTL would answer. Part of a millisecond counts as a whole one,
// so that an entry just written is 0 old.
func pttlAt(ends, now time.Time) int64 {
	if ends.IsZero() {
		return -1
	}
	return int64((ends.Sub(now) + time.Millisecond - 1) / time.Millisecond)
}
