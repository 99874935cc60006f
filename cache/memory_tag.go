package cache

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"
)

// memoryTags are the clock of tags and their records, by the rules of clock.lua,
// tie.lua and tag.lua. memoryData.mu guards them.
type memoryTags struct {
	now     Stamp
	records map[string]*memoryTag
	changed [buckets]uint64 // when a tag of each was last changed
}

// A memoryTag is a tag's record.
type memoryTag struct {
	tagRecord
	tied uint64 // the highest stamp of an entry that carries the tag
	ends time.Time
}

func newMemoryTags() memoryTags {
	t := memoryTags{records: map[string]*memoryTag{}}
	rand.Read(t.now.Epoch[:])
	return t
}

// find is the record, but for one that has expired or is of another clock; nil:
// none.
func (t *memoryTags) find(tag string, now time.Time) *memoryTag {
	r := t.records[tag]
	if r != nil && (passed(r.ends, now) || r.epoch != t.now.Epoch) {
		delete(t.records, tag)
		return nil
	}
	return r
}

// make is find, and makes the record if need be: what was stored before is not
// known, and must not count again.
func (t *memoryTags) make(tag string, made memoryTag, now time.Time) *memoryTag {
	looked := 0
	for other, r := range t.records { // in random order: a few others each time
		if looked++; looked > sweepKeys {
			break
		}
		if passed(r.ends, now) {
			delete(t.records, other)
		}
	}
	r := t.find(tag, now)
	if r == nil {
		made.epoch, made.known = t.now.Epoch, true
		r = &made
		t.records[tag] = r
	}
	return r
}

func (r *memoryTag) keep(until time.Time) {
	if until.After(r.ends) {
		r.ends = until
	}
}

// tie follows Redis.tie. A record that is made anew is settled at once.
func (t *memoryTags) tie(e *Entry, now time.Time) error {
	if len(e.Tags) == 0 {
		return nil
	}
	if e.Stamp.Epoch != t.now.Epoch || time.Since(e.Stamp.taken) > tagWindow {
		return ErrInvalidated
	}
	verdict := tagHolds
	for _, tag := range e.Tags {
		r := t.make(tag, memoryTag{tagRecord: tagRecord{deleted: max(e.goodAt(), t.changed[bucketOf(tag)])}}, now)
		r.tied = max(r.tied, e.goodAt())
		r.keep(now.Add(e.TTL + tagSlack))
		verdict = max(verdict, r.judge(e))
		t.now.N = max(t.now.N, r.deleted, r.expired) // it may have gone back, in a test
	}
	switch verdict {
	case tagDeleted:
		return ErrInvalidated
	case tagExpired:
		e.Flags |= FlagExpired
	}
	return nil
}

// stampAndTie is for an entry that no fetch brought.
func (t *memoryTags) stampAndTie(e *Entry, now time.Time) {
	if len(e.Tags) == 0 {
		return
	}
	for range 2 { // the first may raise the clock
		e.Stamp = t.now
		e.Stamp.taken = now
		e.Flags &^= FlagExpired
		if t.tie(e, now) == nil {
			return
		}
	}
}

// checked looks up whether the tags of a reading that was just made still hold.
func (m *Memory) checked(r *Reading) *Reading {
	if !r.tagged() {
		return r
	}
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	verdict, now := tagHolds, time.Now()
	for _, tag := range r.Entry.Tags {
		var record tagRecord
		if known := d.tags.find(tag, now); known != nil {
			record = known.tagRecord
		}
		verdict = max(verdict, record.judge(&r.Entry))
	}
	r.judged(verdict)
	return r
}

// Stamp implements [Store].
func (m *Memory) Stamp(ctx context.Context) (Stamp, error) {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return Stamp{}, err
	}
	s := d.tags.now
	s.taken = time.Now()
	return s, nil
}

// DeleteTag implements [Store].
func (m *Memory) DeleteTag(ctx context.Context, tags ...string) error {
	return m.changeTags(ctx, tags, func(r *memoryTag) *uint64 { return &r.deleted })
}

// ExpireTag implements [Store].
func (m *Memory) ExpireTag(ctx context.Context, tags ...string) error {
	return m.changeTags(ctx, tags, func(r *memoryTag) *uint64 { return &r.expired })
}

func (m *Memory) changeTags(ctx context.Context, tags []string, field func(*memoryTag) *uint64) error {
	d := m.data
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	if err := checkTagSizes(tags); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if len(tags) == 0 {
		return nil
	}
	now := time.Now()
	d.tags.now.N++
	n := d.tags.now.N
	for _, tag := range tags {
		r := d.tags.make(tag, memoryTag{tagRecord: tagRecord{deleted: n, expired: n}}, now)
		f := field(r)
		*f = max(*f, n, r.tied+1)
		d.tags.now.N = max(d.tags.now.N, *f)
		d.tags.changed[bucketOf(tag)] = d.tags.now.N
		r.keep(now.Add(tagWindow))
		d.feeds.forget(Invalidation{Tag: tag})
	}
	return nil
}
