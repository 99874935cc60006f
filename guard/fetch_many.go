package guard

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// manyFetch is the user's fetch of many keys, without its type. What it got is
// asked for by key.
type manyFetch func(ctx context.Context, keys []string) (got func(key string) (any, bool), err error)

// one is the fetch of one key, for a flight that has to fetch by itself.
func (fetch manyFetch) one(key string) func(context.Context, *fill) (any, error) {
	return func(ctx context.Context, _ *fill) (any, error) {
		got, err := fetch(ctx, []string{key})
		value, ok := got(key)
		return resultOf(key, value, ok, failureOf(err))
	}
}

// A manyFailure is what a fetch's error says of its keys.
type manyFailure struct {
	of    map[string]error // named by a BatchError
	whole error            // of those that nobody names
}

// failureOf takes an error apart that wraps BatchErrors, several of them maybe, as a
// fetch of two upstreams may have joined. What they were joined with is the error of
// the keys that they don't name.
func failureOf(err error) manyFailure {
	part, _ := errors.AsType[*BatchError](err)
	if part == nil {
		return manyFailure{whole: err}
	}
	all := map[string]error{}
	whole, found := takeApart(all, err)
	if !found { // by a method of its own
		return manyFailure{of: part.Errs}
	}
	return manyFailure{of: all, whole: errors.Join(whole...)}
}

// takeApart adds the errors of keys that err wraps; of one key's the first counts. It
// returns the errors that BatchErrors were joined with, and whether there are any of
// those.
func takeApart(all map[string]error, err error) (others []error, found bool) {
	switch e := err.(type) {
	case nil:
		return nil, false
	case *BatchError:
		if e == nil {
			return nil, false
		}
		for key, why := range e.Errs {
			if all[key] == nil {
				all[key] = why
			}
		}
		return nil, true
	case interface{ Unwrap() []error }:
		for _, joined := range e.Unwrap() {
			rest, one := takeApart(all, joined)
			if !one {
				rest = []error{joined}
			}
			others, found = append(others, rest...), found || one
		}
		return others, found
	}
	return takeApart(all, errors.Unwrap(err))
}

// resultOf is what a fetch's answer says of one key.
func resultOf(key string, value any, ok bool, failed manyFailure) (any, error) {
	switch err := failed.of[key]; {
	case err != nil:
		return nil, err
	case ok:
		return value, nil
	case failed.whole != nil:
		return nil, failed.whole
	}
	return nil, ErrNotFound
}

// runFetchMany is runFetch for many keys, with one call of the fetch, which paid
// says what it was paid with, and what it came to for each. evs are the keys'
// events; each key counts as a fetch. What becomes of the leases meanwhile is not
// its business: unwanted is closed when nobody can use any of the results.
func (e *engine) runFetchMany(ctx context.Context, fetch manyFetch, keys *fetchKeys, evs []Event, paid fill, unwanted <-chan struct{}) []fetched {
	timeout := fmt.Errorf("%w: the fetch of %d keys took longer than %v", ErrFetchTimeout, len(evs), e.policy.FetchTimeout)
	if len(evs) == 1 {
		timeout = fmt.Errorf("%w: %s took longer than %v", ErrFetchTimeout, e.about(evs[0].Key), e.policy.FetchTimeout)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.policy.FetchTimeout, timeout)
	defer cancel()
	names := make([]string, len(evs))
	called := false
	defer func() { refundUnless(&called, paid.expense) }()
	for i, ev := range evs {
		names[i] = ev.Key
		e.observeAs(cache.FetchStarted, ev)
	}
	start := time.Now()
	done := make(chan []fetched, 1)
	called = true
	go e.callFetchMany(ctx, fetch, names, keys, paid, done) // see runFetch
	var rs []fetched
	select {
	case rs = <-done:
	case <-ctx.Done():
		rs = all(len(evs), fetched{err: context.Cause(ctx)})
	case <-unwanted:
		rs = all(len(evs), fetched{lost: true, err: context.Canceled})
	}
	took := time.Since(start)
	for i := range rs {
		r, ev := &rs[i], evs[i]
		r.took = took
		r.fill.attempt, r.fill.ttl, r.fill.staleFor = max(1, ev.Attempt), e.policy.TTL, e.policy.Stale
		if r.fill.tags == nil {
			r.fill.tags = e.policy.Tags
		}
		if errors.Is(r.err, context.DeadlineExceeded) && context.Cause(ctx) == timeout {
			r.err = timeout // the fetch heeded its context
		}
		ev.Duration, ev.Err = r.took, r.err
		e.observeAs(endOfFetch(r.err), ev)
	}
	return rs
}

func all(n int, r fetched) []fetched { return slices.Repeat([]fetched{r}, n) }

// callFetchMany calls the user's fetch and packs its values, and answers on done
// whatever becomes of it.
func (e *engine) callFetchMany(ctx context.Context, fetch manyFetch, names []string, keys *fetchKeys, f fill, done chan<- []fetched) {
	ctx, frame := enterMany(ctx, e, keys)
	rs := make([]fetched, len(names))
	returned := false
	defer func() {
		frame.ended.Store(true)
		if !returned {
			r := fetched{err: ErrGoexit}
			if p := recover(); p != nil {
				r.err = &PanicError{Value: p, Stack: debug.Stack()}
			}
			rs = all(len(names), r)
		}
		done <- rs
		if f.expense != nil {
			f.expense.Settle(f.cost) // see callFetch
		}
	}()
	got, err := fetch(ctx, slices.Clone(names))
	failed := failureOf(err)
	for i, key := range names {
		value, ok := got(key)
		rs[i] = e.fetchedOf(key, value, ok, failed)
	}
	returned = true
}

// fetchedOf is what a fetch came to for one key. If TagsOf panics, or a method of the
// key's error, the others live.
func (e *engine) fetchedOf(key string, value any, ok bool, failed manyFailure) (r fetched) {
	defer func() {
		if p := recover(); p != nil {
			r = fetched{err: &PanicError{Value: p, Stack: debug.Stack()}}
		}
	}()
	if r.value, r.err = resultOf(key, value, ok, failed); r.err != nil {
		_ = r.err.Error() // see callFetch
		r.err = e.notFound(r.err)
		_ = errors.Is(r.err, ErrNotFound)
		_, _ = PauseOf(r.err)
		return r
	}
	r.fill.tags = slices.Concat(e.policy.Tags, e.tagsOfValue(key, r.value))
	if r.err = checkTags(r.fill.tags); r.err != nil {
		r.err = fmt.Errorf("guard: Policy.TagsOf: %w", r.err)
		return r
	}
	r.entry, r.err = e.pack(r.value)
	return r
}
