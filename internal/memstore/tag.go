package memstore

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// tags are the clock of tags and their records, by the rules of clock.lua, tie.lua and
// tag.lua. data.mu guards them.
type tags struct {
	now     store.Stamp
	records map[string]*tag
	changed [store.Buckets]uint64 // when a tag of each was last changed
}

// A tag is a tag's record.
type tag struct {
	store.TagRecord
	tied uint64 // the highest stamp of an entry that carries the tag
	ends time.Time
}

func newTags() tags {
	t := tags{records: map[string]*tag{}}
	rand.Read(t.now.Epoch[:])
	return t
}

// find is the record, but for one that has expired or is of another clock; nil: none.
func (t *tags) find(name string, now time.Time) *tag {
	r := t.records[name]
	if r != nil && (passed(r.ends, now) || r.Epoch != t.now.Epoch) {
		delete(t.records, name)
		return nil
	}
	return r
}

// make is find, and makes the record if need be: older entries are unknown and must not
// count again.
func (t *tags) make(name string, made store.TagRecord, now time.Time) *tag {
	looked := 0
	for other, r := range t.records { // in random order: a few others each time
		if looked++; looked > sweepKeys {
			break
		}
		if passed(r.ends, now) {
			delete(t.records, other)
		}
	}
	r := t.find(name, now)
	if r == nil {
		made.Epoch, made.Known = t.now.Epoch, true
		r = &tag{TagRecord: made}
		t.records[name] = r
	}
	return r
}

func (r *tag) keep(until time.Time) {
	if until.After(r.ends) {
		r.ends = until
	}
}

// judge judges an entry by the records of its tags.
func (t *tags) judge(e *store.Entry, now time.Time) store.TagVerdict {
	verdict := store.TagHolds
	for _, name := range e.Tags {
		var record store.TagRecord
		if r := t.find(name, now); r != nil {
			record = r.TagRecord
		}
		verdict = max(verdict, record.Judge(e))
	}
	return verdict
}

// tie notes that an entry is about to be stored that carries its tags, or returns why it
// can't be. A record that is made anew is settled at once.
func (t *tags) tie(e *store.Entry, now time.Time) error {
	if len(e.Tags) == 0 {
		return nil
	}
	if e.Stamp.Epoch != t.now.Epoch || time.Since(e.Stamp.Taken) > store.TagWindow {
		return store.ErrInvalidated
	}
	verdict := store.TagHolds
	for _, name := range e.Tags {
		r := t.make(name, store.TagRecord{Deleted: max(e.GoodAt(), t.changed[store.BucketOf(name)])}, now)
		r.tied = max(r.tied, e.GoodAt())
		r.keep(now.Add(e.TTL + store.TagSlack))
		verdict = max(verdict, r.Judge(e))
		t.now.N = max(t.now.N, r.Deleted, r.Expired) // it may have gone back, in a test
	}
	switch verdict {
	case store.TagDeleted:
		return store.ErrInvalidated
	case store.TagExpired:
		e.Flags |= store.FlagExpired
	}
	return nil
}

// stampAndTie is for an entry that no fetch brought.
func (t *tags) stampAndTie(e *store.Entry, now time.Time) {
	if len(e.Tags) == 0 {
		return
	}
	for range 2 { // the first may raise the clock
		e.Stamp = t.now
		e.Stamp.Taken = now
		e.Flags &^= store.FlagExpired
		if t.tie(e, now) == nil {
			return
		}
	}
}

// Stamp implements [store.Store].
func (m *Store) Stamp(ctx context.Context) (store.Stamp, error) {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := m.readyLocked(ctx); err != nil {
		return store.Stamp{}, err
	}
	s := d.tags.now
	s.Taken = time.Now()
	return s, nil
}

// ChangeTags implements [store.Store].
func (m *Store) ChangeTags(ctx context.Context, what store.TagChange, names []string) error {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := m.readyLocked(ctx); err != nil {
		return err
	}
	if err := store.CheckTagSizes(names); err != nil {
		return err
	}
	if len(names) == 0 {
		return nil
	}
	now := time.Now()
	t := &d.tags
	t.now.N++
	n := t.now.N
	for _, name := range names {
		r := t.make(name, store.TagRecord{Deleted: n, Expired: n}, now)
		mark := &r.Deleted
		if what == store.ExpireTag {
			mark = &r.Expired
		}
		*mark = max(*mark, n, r.tied+1)
		t.now.N = max(t.now.N, *mark)
		t.changed[store.BucketOf(name)] = t.now.N
		r.keep(now.Add(store.TagWindow))
		d.invalidate(store.Invalidation{Tag: name})
	}
	return nil
}
