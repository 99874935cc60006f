package memstore

import (
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/stampedeguard/stampede/internal/store"
)

// data is shared by joined stores: it plays the server.
type data struct {
	// mu guards everything here, all keys, and the fields of Store that say so. It is never
	// held while anything is waited for.
	mu    sync.Mutex
	keys  map[string]*key
	alive map[store.Process]*Store
	tags  tags
	locks map[string]*lock
	fence uint64    // of the last grant of any lock
	began time.Time // the clock of entries starts here

	// lru holds the keys that have an entry; bytes is their cost. All
	// removals go through it, see evicted.
	lru      *simplelru.LRU[string, *key]
	bytes    int64
	maxBytes int64

	// ring has all keys in no order, hand is where the sweep goes on.
	ring []*key
	hand int
}

// sweepKeys are looked at with each write. More than one, so that expired keys
// go faster than new ones come.
const sweepKeys = 4

// entryAllowance is about the memory of an entry besides its bytes and its key.
const entryAllowance = 256

func newData(opts Options) (*data, error) {
	d := &data{
		keys: map[string]*key{}, locks: map[string]*lock{}, alive: map[store.Process]*Store{},
		maxBytes: opts.MaxBytes, tags: newTags(), began: time.Now(), fence: uint64(max(0, time.Now().UnixMicro())),
	}
	var err error
	d.lru, err = simplelru.NewLRU(opts.MaxEntries, d.evicted)
	return d, err
}

// instant is the time of the clock of entries. It starts at the wall clock's time and
// never goes back.
func (d *data) instant() store.Instant {
	return store.Instant(d.began.UnixMicro() + time.Since(d.began).Microseconds())
}

// find drops the expired parts of the key and returns the rest, or nil if nothing is left.
func (d *data) find(name string, now time.Time) *key {
	k := d.keys[name]
	if k != nil && d.purge(k, now) {
		return nil
	}
	return k
}

// make is find, and makes the key if need be. A caller that may leave it empty calls
// tidy.
func (d *data) make(name string, now time.Time) *key {
	d.sweep(now)
	k := d.find(name, now)
	if k == nil {
		k = &key{name: name, place: len(d.ring)}
		d.keys[name] = k
		d.ring = append(d.ring, k)
	}
	return k
}

// sweep drops the expired parts of a few keys.
func (d *data) sweep(now time.Time) {
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

// purge drops the expired parts of k, and k itself if nothing is left: then it
// reports true.
func (d *data) purge(k *key, now time.Time) bool {
	if k.entry != nil && passed(k.entryEnds, now) {
		d.drop(k)
	}
	k.purge(now)
	return d.tidy(k)
}

// tidy forgets k if it is empty, and reports whether it did.
func (d *data) tidy(k *key) bool {
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
func (d *data) put(k *key, b []byte, ends time.Time) {
	d.bytes -= k.cost()
	k.entry, k.entryEnds = b, ends
	d.bytes += k.cost()
	d.lru.Add(k.name, k)
	for d.bytes > d.maxBytes {
		d.lru.RemoveOldest()
	}
}

// drop removes k's entry, if it has one.
func (d *data) drop(k *key) { d.lru.Remove(k.name) }

// evicted is called by lru for each entry that leaves it, asked to or not. The
// rest of the key stays: a lease above all.
func (d *data) evicted(_ string, k *key) {
	d.bytes -= k.cost()
	k.entry = nil
	d.tidy(k)
}

// encode returns an entry as it is stored under a key, now, or why it can't be.
func (d *data) encode(name string, e *store.Entry) ([]byte, error) {
	if e.TTL < time.Millisecond {
		return nil, fmt.Errorf("%w: an entry's TTL of %v is below 1ms", store.ErrRefused, e.TTL)
	}
	e.Written = d.instant()
	b := e.Encode()
	if size := entryCost(name, b); size > d.maxBytes {
		return nil, fmt.Errorf("%w: an entry of %d bytes is larger than MemoryOptions.MaxBytes allows", store.ErrRefused, len(b))
	}
	return b, nil
}

func entryCost(key string, b []byte) int64 { return int64(len(key)) + int64(len(b)) + entryAllowance }

// entryTTL is the expiry that Redis would be told.
func entryTTL(e *store.Entry) time.Duration {
	return time.Duration(store.Millis(e.TTL)) * time.Millisecond
}

// passed reports whether a time has come; the zero time never does.
func passed(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }
