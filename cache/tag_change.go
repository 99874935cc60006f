package cache

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/internal/hooks"
)

// DeleteTag implements [Store].
func (s *Redis) DeleteTag(ctx context.Context, tags ...string) error {
	return s.changeTags(ctx, "delete tag", "d", tags)
}

// ExpireTag implements [Store].
func (s *Redis) ExpireTag(ctx context.Context, tags ...string) error {
	return s.changeTags(ctx, "expire tag", "x", tags)
}

// changeTags advances the clock, and then marks the records of the tags: an
// entry whose fetch has started by now has a stamp below that.
func (s *Redis) changeTags(ctx context.Context, op, field string, tags []string) error {
	if s.closing.Load() {
		return ErrClosed
	}
	if err := checkTagSizes(tags); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if tags = distinct(tags); len(tags) == 0 {
		return nil
	}
	defer func() { // see change
		for _, t := range tags {
			s.feeds.forget(Invalidation{Tag: t})
		}
	}()
	now, _, err := s.runClock(ctx, 1, Stamp{}, bucketsOf(tags))
	if err != nil {
		return err
	}
	calls := make([]scriptCall, len(tags))
	for i, t := range tags {
		calls[i] = scriptCall{
			s.keys.tag(t),
			[]any{now.Epoch[:], now.N, field, tagWindow.Milliseconds(), s.keys.invalidations(), tagChanged + t},
		}
	}
	var errs []error
	highest := now
	for i, a := range s.runAll(ctx, op, tagScript, calls) {
		if a.err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", tags[i], s.orLater(op, a.err)))
			continue
		}
		mark, _ := a.reply.(int64)
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
func (s *Redis) runClock(ctx context.Context, by int, least Stamp, buckets []bucket) (now Stamp, changed []uint64, err error) {
	taken := time.Now()
	var epoch Epoch
	rand.Read(epoch[:])
	var of []byte
	if least != (Stamp{}) {
		of = least.Epoch[:]
	}
	args := []any{epoch[:], by, least.N, of}
	for _, b := range buckets {
		args = append(args, b.field())
	}
	answers := s.runAll(ctx, "clock", clockScript, []scriptCall{{s.keys.clock(), args}})
	if err := answers[0].err; err != nil {
		return Stamp{}, nil, err
	}
	r := replies{reply: answers[0].reply}
	text, n := r.text(0), r.number(1)
	if by == 0 {
		for i := range buckets {
			changed = append(changed, uint64(max(r.number(2+i), 0)))
		}
	}
	if r.err != nil || len(text) != len(epoch) {
		return Stamp{}, nil, fmt.Errorf("%w: the clock of tags can't be read", ErrRefused)
	}
	return Stamp{Epoch: Epoch([]byte(text)), N: uint64(max(n, 0)), taken: taken}, changed, nil
}

// raiseClock is for a clock that has gone back, in a failover: what is fetched
// next would be refused, as older than a deletion that it comes after. If it
// fails the next one who meets it tries again.
func (s *Redis) raiseClock(ctx context.Context, least Stamp) {
	_, _, _ = s.runClock(ctx, 0, least, nil)
}

// tie notes with the tags of each entry that it is about to be stored, and
// answers why one can't be: ErrInvalidated if a tag was deleted since its stamp.
// An entry one of whose tags was expired since is marked so. Entries without tags
// cost nothing. A tag that has no record yet costs two round trips more.
func (s *Redis) tie(ctx context.Context, entries ...*Entry) []error {
	errs := make([]error, len(entries))
	var tagged []int
	for i, e := range entries {
		switch {
		case e == nil || len(e.Tags) == 0:
			continue
		case time.Since(e.Stamp.taken) > tagWindow:
			errs[i] = fmt.Errorf("%w, for all that is known: it was fetched for longer than %v", ErrInvalidated, tagWindow)
		default:
			if errs[i] = storableTags(e); errs[i] == nil {
				tagged = append(tagged, i)
			}
		}
	}
	met := s.tieOnce(ctx, entries, tagged, errs, tying{})
	if len(met.foreign) > 0 {
		// A record is of another epoch: either there is a new clock, or the stamp is
		// of an old one.
		now, err := s.Stamp(ctx)
		again := ofClock(now, err, entries, met.foreign, errs)
		forced := s.tieOnce(ctx, entries, again, errs, tying{force: true})
		met.unsettled = append(met.unsettled, forced.unsettled...)
	}
	if len(met.unsettled) > 0 {
		// A record is new: Redis may have evicted one that told of a change.
		tags := tagsOf(entries, met.unsettled)
		now, changed, err := s.runClock(ctx, 0, Stamp{}, bucketsOf(tags))
		again := ofClock(now, err, entries, met.unsettled, errs)
		settled := tying{changed: map[bucket]uint64{}}
		for i, b := range bucketsOf(tags) {
			if err == nil {
				settled.changed[b] = changed[i]
			}
		}
		for _, i := range s.tieOnce(ctx, entries, again, errs, settled).unsettled {
			errs[i] = ErrInvalidated // it was evicted once more
		}
	}
	return errs
}

// tagsOf are the tags of the entries of the given places.
func tagsOf(entries []*Entry, places []int) (tags []string) {
	for _, i := range places {
		tags = append(tags, entries[i].Tags...)
	}
	return tags
}

// ofClock returns those of the places whose entries have a stamp of the clock that was
// read. The others can't be stored, and err is why if the clock could not be read.
func ofClock(now Stamp, err error, entries []*Entry, places []int, errs []error) (same []int) {
	for _, i := range places {
		switch {
		case err != nil:
			errs[i] = err
		case now.Epoch != entries[i].Stamp.Epoch:
			errs[i] = ErrInvalidated
		default:
			same = append(same, i)
		}
	}
	return same
}

// A knot is what entries share that carry one tag and were good at the same time:
// they are tied together.
type knot struct {
	tag   string
	epoch Epoch
	n     uint64
}

// tying is what is known of the clock when entries are tied.
type tying struct {
	force bool // their epoch is the clock's
	// changed says when tags were last changed, by their buckets. It was read after a
	// record was found unsettled. Nil: it was not read.
	changed map[bucket]uint64
}

func (t tying) args(k knot, kept int64) []any {
	force, changed := 0, []byte(nil)
	if t.force {
		force = 1
	}
	if t.changed != nil {
		changed = strconv.AppendUint(nil, t.changed[bucketOf(k.tag)], 10)
	}
	return []any{k.epoch[:], k.n, kept, force, changed}
}

// unlike are the places of entries of which a record needs another look.
type unlike struct {
	foreign   []int // it is of another epoch
	unsettled []int // a change of its tag may have been evicted
}

// tieOnce ties the entries of the given places.
func (s *Redis) tieOnce(ctx context.Context, entries []*Entry, places []int, errs []error, t tying) (met unlike) {
	if len(places) == 0 {
		return met
	}
	var calls []scriptCall
	at := map[knot]int{}
	for _, i := range places {
		e := entries[i]
		kept := (e.TTL + tagSlack).Milliseconds()
		for _, tag := range e.Tags {
			k := knot{tag, e.Stamp.Epoch, e.goodAt()}
			j, ok := at[k]
			if !ok {
				j = len(calls)
				at[k] = j
				calls = append(calls, scriptCall{s.keys.tag(tag), t.args(k, kept)})
			}
			calls[j].args[2] = max(calls[j].args[2].(int64), kept)
		}
	}
	answers := s.runAll(ctx, "tie", tieScript, calls)
	var last Stamp
	for _, i := range places {
		e := entries[i]
		var deleted, expired int64
		foreign, unsettled := false, false
		for _, tag := range e.Tags {
			a := answers[at[knot{tag, e.Stamp.Epoch, e.goodAt()}]]
			r := replies{reply: a.reply}
			if a.err != nil {
				errs[i] = errors.Join(errs[i], a.err)
				continue
			}
			d, x := r.number(0), r.number(1)
			unsettled = unsettled || r.number(2) == 1
			if r.err != nil {
				errs[i] = errors.Join(errs[i], fmt.Errorf("%w: tie: %w", ErrRefused, r.err))
			}
			foreign = foreign || d < 0
			deleted, expired = max(deleted, d), max(expired, x)
		}
		if errs[i] != nil {
			continue
		}
		if n := uint64(max(deleted, expired)); t.changed == nil && n > max(e.goodAt(), last.N) {
			last = Stamp{Epoch: e.Stamp.Epoch, N: n}
		}
		switch {
		case uint64(deleted) > e.Stamp.N && !hooks.TagCheckOff.Load():
			errs[i] = ErrInvalidated
			continue
		case uint64(expired) > e.goodAt():
			e.Flags |= FlagExpired
		}
		switch {
		case foreign:
			met.foreign = append(met.foreign, i)
		case unsettled:
			met.unsettled = append(met.unsettled, i)
		}
	}
	if last != (Stamp{}) {
		s.raiseClock(ctx, last)
	}
	return met
}

// stampAndTie is for an entry that no fetch brought: it is as of now. If its
// tags are deleted time and again meanwhile it may be stored as it is: readers
// find out that it is invalid.
func (s *Redis) stampAndTie(ctx context.Context, e *Entry) error {
	const tries = 3
	for range tries {
		var err error
		if e.Stamp, err = s.Stamp(ctx); err != nil {
			return err
		}
		e.Flags &^= FlagExpired
		if err = s.tie(ctx, e)[0]; !errors.Is(err, ErrInvalidated) {
			return err
		}
	}
	return nil
}

// storableTags reports why an entry can't be stored with its tags, if so.
func storableTags(e *Entry) error {
	err := CheckTags(e.Tags)
	if err == nil && e.Kind == Bypass && len(e.Tags) > 0 {
		err = errors.New("cache: a bypass carries no tags")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}

// A scriptCall is one run of a script, on one key.
type scriptCall struct {
	key  string
	args []any
}

type scriptAnswer struct {
	reply any
	err   error
}

// runAll runs a script for each call, those of one node in a pipeline and the
// nodes side by side. It returns when all have been answered or given up.
func (s *Redis) runAll(ctx context.Context, op string, sc *script, calls []scriptCall) []scriptAnswer {
	answers := make([]scriptAnswer, len(calls))
	groups := map[*node][]int{}
	for i, c := range calls {
		n, err := s.topo.node(c.key)
		if err != nil {
			answers[i].err = err
			continue
		}
		groups[n] = append(groups[n], i)
	}
	done := make(chan struct{}, len(groups))
	for n, group := range groups {
		run := func() {
			defer func() { done <- struct{}{} }()
			part := make([]scriptCall, len(group))
			for i, at := range group {
				part[i] = calls[at]
			}
			for i, a := range s.runOn(ctx, n, op, sc, part) {
				answers[group[i]] = a
			}
		}
		if len(groups) == 1 {
			run()
		} else {
			go run() // ends with do, which is bounded
		}
	}
	for range groups {
		<-done
	}
	return answers
}

// runOn is runAll on one node: one pipeline for every 2000 calls.
func (s *Redis) runOn(ctx context.Context, n *node, op string, sc *script, calls []scriptCall) []scriptAnswer {
	answers := make([]scriptAnswer, 0, len(calls))
	for part := range slices.Chunk(calls, manyKeys) {
		answers = append(answers, s.runPart(ctx, n, op, sc, part)...)
	}
	return answers
}

func (s *Redis) runPart(ctx context.Context, n *node, op string, sc *script, calls []scriptCall) []scriptAnswer {
	invs := make([]invocation, len(calls))
	for i, c := range calls {
		invs[i] = sc.invoke(1, slices.Concat([]any{c.key}, c.args)...)
	}
	answered := make(chan []scriptAnswer, 1)
	err := s.doWithin(ctx, n, op, s.manyTimeout(len(calls)), func(ctx context.Context) error {
		replies, err := s.runMany(ctx, invs)
		answers := make([]scriptAnswer, len(calls))
		for i, r := range replies {
			answers[i] = scriptAnswer{r.value, n.explain(classify(op, r.err))}
			if r.err != nil {
				err = r.err
			}
		}
		answered <- answers
		return err
	})
	select {
	case answers := <-answered:
		return answers
	default:
	}
	answers := make([]scriptAnswer, len(calls))
	for i := range answers {
		answers[i].err = err
	}
	return answers
}
