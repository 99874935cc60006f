package sim

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
)

// someKeys draws the keys of a GetMany: two at least, in any order, and
// now and then one of them twice.
func (w *world) someKeys() []string {
	var keys []string
	for _, i := range w.rng.Perm(w.plan.keys)[:2+w.rng.IntN(w.plan.keys-1)] {
		keys = append(keys, "k"+strconv.Itoa(i))
	}
	if w.rng.IntN(8) == 0 {
		keys = append(keys, keys[0])
	}
	return keys
}

func (o *op) runMany(ctx context.Context) {
	o.values, o.err = o.p.guard.GetMany(ctx, o.keys, o.fetchMany)
	if part, ok := errors.AsType[*guard.BatchError](o.err); ok {
		o.errs = part.Errs
	}
}

func (o *op) manyResult() string {
	if o.p.isDead() {
		return "in a process that is dead" // Go decides which part of it
	}
	var all []string
	for _, key := range o.distinct() {
		what := "nothing"
		if v, ok := o.values[key]; ok {
			what = strconv.Quote(v)
		} else if err := o.errs[key]; err != nil {
			what = "error: " + plain(err.Error())
		}
		all = append(all, key+" "+what)
	}
	return strings.Join(all, ", ")
}

// distinct are the keys asked for, in their order.
func (o *op) distinct() []string { return slices.Compact(slices.Sorted(slices.Values(o.keys))) }

// fetchMany is the fetch function of the op's calls of GetMany. To the checks
// it is a fetch of each of the keys.
func (o *op) fetchMany(ctx context.Context, keys []string) (map[string]string, error) {
	all := o.fetchesOf(ctx, keys)
	for _, f := range all {
		o.w.begin(f)
		defer o.w.finished(f)
	}
	if err := all[0].wait(); err != nil {
		return nil, err
	}
	return o.fetched(all)
}

// fetchesOf draws the outcome of a call of the fetch. It may be one of several
// that run at once, so each has a source of its own.
func (o *op) fetchesOf(ctx context.Context, keys []string) []*fetch {
	w := o.w
	names := make([]string, len(keys))
	w.mu.Lock()
	for i, key := range keys {
		if o.tries == nil {
			o.tries = map[string]int{}
		}
		o.tries[key]++
		names[i] = fmt.Sprintf("%v.%s.%d", o, key, o.tries[key])
	}
	w.mu.Unlock()
	h := fnv.New64a()
	_, _ = h.Write([]byte(names[0]))
	rng := rand.New(rand.NewPCG(o.seed, h.Sum64()))
	first := &fetch{heeds: rng.IntN(100) >= w.plan.stubborn, ready: w.plan.readyAfter(rng), rng: rng}
	if rng.IntN(100) < w.plan.failing && rng.IntN(2) == 0 {
		first.whole = failure + ending(rng.IntN(int(endings-failure)))
	}
	all := make([]*fetch, len(keys))
	for i, key := range keys {
		f := &fetch{heeds: first.heeds, ready: first.ready, first: first}
		if i == 0 {
			f = first
		}
		f.name, f.ctx, f.op, f.key, f.finish = names[i], ctx, o, key, make(chan struct{})
		f.start, f.began = w.step(), time.Now()
		f.token = w.leaseToken(o.lease(key))
		f.ending = first.whole
		switch {
		case first.whole == panics || first.whole == panicsError || first.whole == exits:
		case first.whole != value && rng.IntN(4) == 0:
			f.ending = value // it is in the map all the same
		case first.whole == value && rng.IntN(100) < w.plan.failing:
			f.ending = pick(rng, failure, notFound, retryAfter)
		}
		all[i] = f
	}
	return all
}

// fetched is the result of the fetch function.
func (o *op) fetched(all []*fetch) (map[string]string, error) {
	first := all[0]
	got, errs := map[string]string{}, map[string]error{}
	var texts []string
	for _, f := range all {
		text := f.text()
		if f.ending != value {
			texts = append(texts, text)
		}
		switch f.ending {
		case value:
			got[f.key] = text
		case failure, retryAfter:
			errs[f.key] = o.fail(first.rng, f.ending, text)
		}
	}
	for i := range o.w.plan.keys {
		key := "k" + strconv.Itoa(i)
		if !slices.ContainsFunc(all, func(f *fetch) bool { return f.key == key }) {
			got[key] = key + " unasked" // must reach no caller
		}
	}
	if err := o.fail(first.rng, first.whole, strings.Join(texts, " and ")); err != nil {
		return got, err
	}
	if len(errs) > 0 {
		return got, fmt.Errorf("some: %w", &guard.BatchError{Errs: errs})
	}
	return got, nil
}

// gaveMany checks the results of a call of GetMany, each key by itself.
func (b *book) gaveMany(w *world, o *op) {
	keys := o.distinct()
	if o.err != nil && len(o.errs) == 0 {
		w.violate("error", "%v was given an error of no key: %v", o, o.err)
	}
	given := slices.Concat(slices.Collect(maps.Keys(o.values)), slices.Collect(maps.Keys(o.errs)))
	for _, key := range slices.Sorted(slices.Values(given)) {
		if !slices.Contains(keys, key) {
			w.violate("value", "%v of %v was given something for %s", o, keys, key)
		}
	}
	for _, key := range keys {
		v, ok := o.values[key]
		err := o.errs[key]
		switch {
		case ok && err != nil:
			w.violate("value", "%v was given both %q and an error for %s: %v", o, v, key, err)
		case ok:
			b.gaveValue(w, o, key, v)
		case err != nil:
			b.gaveError(w, o, key, err)
		default:
			b.gaveNothing(w, o, key)
		}
	}
}

// gaveNothing checks that some fetch found nothing, and did so after the changes
// that had returned before the caller came.
func (b *book) gaveNothing(w *world, o *op, key string) {
	from := 0
	w.mu.Lock()
	for _, f := range w.fetches {
		if f.key == key && f.ending == notFound && f.ended != 0 {
			from = max(from, f.start)
		}
	}
	w.mu.Unlock()
	if from == 0 {
		w.violate("value", "%v was told that there is no %s, which no fetch has said", o, key)
		return
	}
	// An absent key has no tags.
	b.since(w, o, []string{key}, from, from, "nothing, as a fetch said that started")
}

// answered notes the lease that the op's last request for a key was granted: GetMany's
// fetch isn't told under which it runs.
func (o *op) answered(name string, a *store.Answer) {
	if o == nil {
		return
	}
	key := strings.TrimPrefix(name, guardName+":")
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	// After an answer that grants nothing, the fetch of an earlier grant may still
	// start: a flight that has lost its lease goes on beside the next one.
	if a.Err != nil {
		delete(o.leases, key)
	}
	if a.Err != nil || a.Verdict != store.Granted {
		return
	}
	if o.leases == nil {
		o.leases = map[string]store.Token{}
	}
	o.leases[key] = a.Lease.Token
}

// lease is the token of the lease under which the op's fetch of the key starts
// now, zero if there is none. A lease is for one fetch.
func (o *op) lease(key string) store.Token {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	t := o.leases[key]
	delete(o.leases, key)
	return t
}
