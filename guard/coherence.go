package guard

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/stampedeguard/stampede/internal/store"
)

// A coherence notes which keys and tags were changed, by this process or by another one as far
// as this process hears of it. The near cache and the reserve drop the values of those, and
// refuse values that were asked for earlier.
type coherence struct {
	feed    *store.Feed
	near    *near    // nil: none
	reserve *reserve // nil: none

	// stamps change when a key of their stripe is changed. A value that was asked for
	// earlier is not used later. Other keys of the stripe suffer a miss.
	stamps [256]atomic.Uint64
	// tagStamps do the same for tags. tagChanges counts all of their changes, each before it
	// is made. The tags of a value are known only when it has been read. If tagChanges
	// is the same as when the value was asked for, the stamps of its tags are the same, too.
	tagStamps  [256]atomic.Uint64
	tagChanges atomic.Uint64
	seed       maphash.Seed
	keyChanges atomic.Uint64 // all changes of keys, each counted before it is made
}

func newCoherence() *coherence { return &coherence{seed: maphash.MakeSeed()} }

// follow begins to take in the changes of keys and tags with that prefix.
func (c *coherence) follow(s store.Store, prefix string) {
	c.feed = s.Follow(func(what store.Invalidation) {
		if what.Tag != "" {
			if strings.HasPrefix(what.Tag, prefix) {
				c.forgetTag(what.Tag)
			}
		} else if key, ours := strings.CutPrefix(what.Key, prefix); ours {
			c.forget(key)
		}
	})
	if c.near == nil {
		c.feed.Relax() // the reserve is for when the store is away
	}
}

// forget drops the values of a key, and rules out values that were asked for before.
func (c *coherence) forget(key string) {
	hash := c.hash(key)
	c.keyChanges.Add(1)
	c.stamp(hash).Add(1)
	if c.near != nil {
		c.near.values.Invalidate(key)
	}
	if c.reserve != nil {
		c.reserve.remove(hash, key)
	}
}

// forgetTag rules out all values that carry the tag, which is as the store has it, and
// values that were asked for before. Their memory is freed as other values come.
func (c *coherence) forgetTag(tag string) {
	c.tagChanges.Add(1)
	c.tagStamp(tag).Add(1)
}

func (c *coherence) hash(key string) uint64 { return maphash.String(c.seed, key) }

func (c *coherence) stamp(hash uint64) *atomic.Uint64 { return &c.stamps[hash%uint64(len(c.stamps))] }

func (c *coherence) tagStamp(tag string) *atomic.Uint64 {
	return &c.tagStamps[c.hash(tag)%uint64(len(c.tagStamps))]
}

// A ticket is taken before a value is asked for, and shown when the value is put in.
type ticket struct {
	hash, epoch, era, stamp, tagChanges uint64
}

func (c *coherence) ticket(key string) ticket {
	hash := c.hash(key)
	t := ticket{hash: hash, epoch: c.feed.Epoch(), stamp: c.stamp(hash).Load(), tagChanges: c.tagChanges.Load()}
	if c.reserve != nil {
		t.era = c.reserve.era.Load()
	}
	return t
}

// manyTickets are the tickets of many keys. The near cache needs one for each. The reserve
// makes do with a count of all changes: the ticket of a key is made when it is needed, and is
// void if any key has been changed meanwhile.
type manyTickets struct {
	c                            *coherence // nil: there are none
	keys                         []string
	each                         []ticket // nil: they are made when needed
	epoch, keyChanges, tagChange uint64
}

func (c *coherence) manyTickets(keys []string) manyTickets {
	if c == nil {
		return manyTickets{}
	}
	m := manyTickets{c: c, keys: keys, epoch: c.feed.Epoch(), keyChanges: c.keyChanges.Load(), tagChange: c.tagChanges.Load()}
	if c.near != nil {
		m.each = make([]ticket, len(keys))
		for i, key := range keys {
			m.each[i] = c.ticket(key)
		}
	}
	return m
}

// of returns the ticket of the i-th key. Nothing can be put in with a void one.
func (m *manyTickets) of(i int) ticket {
	if m.c == nil {
		return ticket{}
	}
	if m.each != nil {
		return m.each[i]
	}
	t := m.c.ticket(m.keys[i])
	t.epoch, t.tagChanges = m.epoch, m.tagChange
	if m.c.keyChanges.Load() != m.keyChanges {
		t.epoch = 0
	}
	return t
}

// A since tells whether a value was changed since it was asked for.
type since struct {
	stamp *atomic.Uint64 // of the key's stripe
	asked uint64         // the stamp when the value was asked for
	tags  []tagSince     // nil: the value carries no tags
}

// A tagSince is a tag's stripe as it was when the value was asked for.
type tagSince struct {
	stamp *atomic.Uint64
	asked uint64
}

// since returns the stamps by which a value with these tags is checked later. ok is false
// if a tag has been changed since the ticket was taken.
func (c *coherence) since(t ticket, tags []string) (s since, ok bool) {
	s = since{stamp: c.stamp(t.hash), asked: t.stamp}
	if len(tags) == 0 {
		return s, true
	}
	s.tags = make([]tagSince, len(tags))
	for i, tag := range tags {
		stamp := c.tagStamp(tag)
		s.tags[i] = tagSince{stamp, stamp.Load()}
	}
	return s, c.tagChanges.Load() == t.tagChanges // read last: see tagChanges
}

func (s *since) changed() bool {
	for i := range s.tags {
		if t := &s.tags[i]; t.stamp.Load() != t.asked {
			return true
		}
	}
	return s.stamp.Load() != s.asked
}
