package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// Stamp implements [store.Store]. Concurrent calls share round trips.
func (s *tags) Stamp(ctx context.Context) (store.Stamp, error) {
	if err := s.ready(ctx); err != nil {
		return store.Stamp{}, err
	}
	taken, name := time.Now(), s.names.clock()
	f := s.startLookUp(ctx, []string{name}).await(ctx)[0]
	if f.err != nil {
		return store.Stamp{}, f.err
	}
	if !f.Known {
		now, _, err := s.runClock(ctx, 0, store.Stamp{}, nil)
		return now, err
	}
	return store.Stamp{Epoch: f.Epoch, N: f.n, Taken: taken}, nil
}

// ChangeTags implements [store.Store]. It advances the clock, and then marks the records of
// the tags. If its fetch has started by now, an entry has a stamp below that mark.
func (s *tags) ChangeTags(ctx context.Context, what store.TagChange, tags []string) error {
	if err := errors.Join(s.ready(ctx), store.CheckTagSizes(tags)); err != nil {
		return err
	}
	if tags = store.Distinct(tags); len(tags) == 0 {
		return nil
	}
	defer func() { // near caches of this process need not wait to hear of it
		for _, t := range tags {
			s.feeds.Forget(store.Invalidation{Tag: t})
		}
	}()
	op, field := "delete tag", "d"
	if what == store.ExpireTag {
		op, field = "expire tag", "x"
	}
	now, _, err := s.runClock(ctx, 1, store.Stamp{}, store.BucketsOf(tags))
	if err != nil {
		return err
	}
	calls := make([]invocation, len(tags))
	for i, t := range tags {
		calls[i] = tagScript.invoke(1, s.names.tag(t),
			now.Epoch[:], now.N, field, store.TagWindow.Milliseconds(), s.names.invalidations(), tagChanged+t)
	}
	var errs []error
	highest := now
	for i, a := range s.runAll(ctx, op, calls) {
		if a.err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", tags[i], orLater(op, a.fate, a.err)))
			continue
		}
		mark, _ := a.value.(int64)
		highest.N = max(highest.N, uint64(max(mark, 0)))
	}
	if highest.N > now.N {
		s.raiseClock(ctx, highest)
	}
	return errors.Join(errs...)
}

// runClock moves the clock of tags by as much, after raising it to at least the given
// stamp if that is of its epoch, and notes that tags of the buckets are being changed.
// Without a step it returns when tags of the buckets were last changed.
func (s *tags) runClock(ctx context.Context, by int, least store.Stamp, buckets []store.Bucket) (now store.Stamp, changed []uint64, err error) {
	taken := time.Now()
	var epoch store.Epoch
	rand.Read(epoch[:])
	var of []byte
	if least != (store.Stamp{}) {
		of = least.Epoch[:]
	}
	words := []any{s.names.clock(), epoch[:], by, least.N, of}
	for _, b := range buckets {
		words = append(words, b.Field())
	}
	value, fate, err := s.call(ctx, "clock", clockScript.invoke(1, words...), nil)
	if err != nil {
		return store.Stamp{}, nil, orLater("change of the clock", fate, err)
	}
	f := fields{reply: value}
	text, n := f.text(0), f.number(1)
	if by == 0 {
		for i := range buckets {
			changed = append(changed, uint64(max(f.number(2+i), 0)))
		}
	}
	if f.err != nil || len(text) != len(epoch) {
		return store.Stamp{}, nil, fmt.Errorf("%w: the clock of tags can't be read", store.ErrRefused)
	}
	return store.Stamp{Epoch: store.Epoch([]byte(text)), N: uint64(max(n, 0)), Taken: taken}, changed, nil
}

// raiseClock is for a clock that has gone back, in a failover: the next fetch would be
// refused, as older than a deletion that it comes after. If it fails the next caller that
// meets the clock tries again.
func (s *tags) raiseClock(ctx context.Context, least store.Stamp) {
	_, _, _ = s.runClock(ctx, 0, least, nil)
}

// tie notes with the tags of each entry that it is about to be stored, and returns the
// error of an entry that can't be: ErrInvalidated if a tag was deleted since its stamp. If
// a tag was expired since, the entry is marked so. Entries without tags cost nothing. A
// tag that has no record yet costs two round trips more.
func (s *tags) tie(ctx context.Context, entries []*store.Entry) []error {
	errs := make([]error, len(entries))
	var tagged []int
	for i, e := range entries {
		switch {
		case e == nil:
		case e.Storable() != nil:
			errs[i] = e.Storable()
		case len(e.Tags) == 0:
		case time.Since(e.Stamp.Taken) > store.TagWindow:
			errs[i] = fmt.Errorf("%w, for all that is known: it was fetched for longer than %v", store.ErrInvalidated, store.TagWindow)
		default:
			tagged = append(tagged, i)
		}
	}
	met := s.tieOnce(ctx, entries, tagged, errs, tying{})
	if len(met.foreign) > 0 {
		// A record is of another epoch: either there is a new clock, or the stamp is of an
		// old one.
		now, err := s.Stamp(ctx)
		again := ofClock(now, err, entries, met.foreign, errs)
		forced := s.tieOnce(ctx, entries, again, errs, tying{force: true})
		met.unsettled = append(met.unsettled, forced.unsettled...)
	}
	if len(met.unsettled) > 0 {
		// A record is new: Redis may have evicted one that told of a change.
		var tags []string
		for _, i := range met.unsettled {
			tags = append(tags, entries[i].Tags...)
		}
		some := store.BucketsOf(tags)
		now, changed, err := s.runClock(ctx, 0, store.Stamp{}, some)
		again := ofClock(now, err, entries, met.unsettled, errs)
		settled := tying{changed: map[store.Bucket]uint64{}}
		for i, b := range some {
			if err == nil {
				settled.changed[b] = changed[i]
			}
		}
		for _, i := range s.tieOnce(ctx, entries, again, errs, settled).unsettled {
			errs[i] = store.ErrInvalidated // it was evicted once more
		}
	}
	return errs
}

// ofClock returns the places of the entries that have a stamp of the clock's epoch. The
// other entries can't be stored. If the clock could not be read, err is their error.
func ofClock(now store.Stamp, err error, entries []*store.Entry, places []int, errs []error) (same []int) {
	for _, i := range places {
		switch {
		case err != nil:
			errs[i] = err
		case now.Epoch != entries[i].Stamp.Epoch:
			errs[i] = store.ErrInvalidated
		default:
			same = append(same, i)
		}
	}
	return same
}

// A knot is a tag and the clock's state at which an entry was last usable. Entries that
// share both are tied together.
type knot struct {
	tag   string
	epoch store.Epoch
	n     uint64
}

// tying is the knowledge of the clock with which entries are tied.
type tying struct {
	force bool // their epoch is the clock's
	// changed says when tags were last changed, by their buckets. It was read after a record
	// was found unsettled. Nil: it was not read.
	changed map[store.Bucket]uint64
}

// unlike are the places of entries of which a record needs another look.
type unlike struct {
	foreign   []int // it is of another epoch
	unsettled []int // a change of its tag may have been evicted
}

// tieOnce ties the entries of the given places.
func (s *tags) tieOnce(ctx context.Context, entries []*store.Entry, places []int, errs []error, t tying) (met unlike) {
	if len(places) == 0 {
		return met
	}
	var knots []knot
	kept := map[knot]time.Duration{}
	place := map[knot]int{}
	for _, i := range places {
		e := entries[i]
		for _, tag := range e.Tags {
			k := knot{tag, e.Stamp.Epoch, e.GoodAt()}
			if _, known := place[k]; !known {
				place[k] = len(knots)
				knots = append(knots, k)
			}
			kept[k] = max(kept[k], e.TTL+store.TagSlack)
		}
	}
	calls := make([]invocation, len(knots))
	for i, k := range knots {
		var changed []byte
		if t.changed != nil {
			changed = strconv.AppendUint(nil, t.changed[store.BucketOf(k.tag)], 10)
		}
		calls[i] = tieScript.invoke(1, s.names.tag(k.tag), k.epoch[:], k.n, kept[k].Milliseconds(), flag(t.force), changed)
	}
	answers := s.runAll(ctx, "tie", calls)
	var last store.Stamp
	for _, i := range places {
		e := entries[i]
		var deleted, expired int64
		foreign, unsettled := false, false
		for _, tag := range e.Tags {
			a := answers[place[knot{tag, e.Stamp.Epoch, e.GoodAt()}]]
			if a.err != nil {
				errs[i] = errors.Join(errs[i], a.err)
				continue
			}
			f := fields{reply: a.value}
			d, x := f.number(0), f.number(1)
			unsettled = unsettled || f.number(2) == 1
			if f.err != nil {
				errs[i] = errors.Join(errs[i], fmt.Errorf("%w: tie: %w", store.ErrRefused, f.err))
			}
			foreign = foreign || d < 0
			deleted, expired = max(deleted, d), max(expired, x)
		}
		if errs[i] != nil {
			continue
		}
		if n := uint64(max(deleted, expired)); t.changed == nil && n > max(e.GoodAt(), last.N) {
			last = store.Stamp{Epoch: e.Stamp.Epoch, N: n}
		}
		switch {
		case uint64(deleted) > e.Stamp.N:
			errs[i] = store.ErrInvalidated
			continue
		case uint64(expired) > e.GoodAt():
			e.Flags |= store.FlagExpired
		}
		switch {
		case foreign:
			met.foreign = append(met.foreign, i)
		case unsettled:
			met.unsettled = append(met.unsettled, i)
		}
	}
	if last != (store.Stamp{}) {
		s.raiseClock(ctx, last)
	}
	return met
}

// stampAndTie is for entries that no fetch brought: they are as of now. If the tags are
// deleted time and again meanwhile they may be stored as they are: readers find out that
// they are invalid.
func (s *tags) stampAndTie(ctx context.Context, entries []*store.Entry) []error {
	const tries = 3
	errs := make([]error, len(entries))
	left := make([]int, len(entries))
	for i := range left {
		left[i] = i
	}
	for range tries {
		now, err := s.Stamp(ctx)
		some := make([]*store.Entry, len(left))
		for j, i := range left {
			errs[i] = err
			some[j] = entries[i]
			entries[i].Stamp = now
			entries[i].Flags &^= store.FlagExpired
		}
		if err != nil {
			return errs
		}
		var again []int
		for j, err := range s.tie(ctx, some) {
			if errors.Is(err, store.ErrInvalidated) {
				again = append(again, left[j])
			} else {
				errs[left[j]] = err
			}
		}
		if left = again; len(left) == 0 {
			break
		}
	}
	return errs
}
