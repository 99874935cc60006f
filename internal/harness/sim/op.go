package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
)

// A kind is the method of a call.
type kind byte

const (
	get kind = iota
	peek
	set
	del
	expire
	reset
	delTag
	expireTag
	getMany
	reload
)

func (k kind) String() string {
	return [...]string{"get", "peek", "set", "delete", "expire", "reset", "delete tag", "expire tag", "get many", "reload"}[k]
}

// An op is one call of a guard, by one caller.
type op struct {
	w    *world
	id   int
	p    *process
	kind kind
	key  string   // or tag
	keys []string // of getMany
	seed uint64   // decides the outcome of its fetches, as rng does

	start    int // step
	began    time.Time
	deadline time.Time // zero: none
	cancel   context.CancelFunc
	rng      *rand.Rand

	// Written by its goroutine, read when that has ended.
	value     string
	source    guard.Source
	err       error
	values    map[string]string // of getMany, as errs
	errs      map[string]error
	end       int
	took      time.Time
	previewed bool      // the value is one that is not stored: a preview, or it was refused
	turnAt    time.Time // a turn was given: to end it takes the time of a command, whatever the deadline; zero: none was

	before content // of a Get's key, when it came
	away   bool    // the breaker was open for long when it came

	returned, forgotten, judged bool
	carriedOut                  int            // step at which Redis carried the change out; 0: it hasn't
	told                        map[string]int // of a change, by key or tag: step at which near caches were told
	fetches                     int
	alone                       atomic.Bool // a change has a call of its own

	// By key, of getMany; guarded by world.mu.
	tries  map[string]int         // fetches
	leases map[string]store.Token // granted for the next fetch
}

type opKey struct{}

func (o *op) String() string {
	if o == nil {
		return "-"
	}
	return "o" + strconv.Itoa(o.id)
}

func (w *world) startOp(p *process, k kind, keys ...string) {
	o := &op{
		w: w, id: len(w.ops) + 1, p: p, kind: k, key: strings.Join(keys, " "), keys: keys, start: w.step(), began: time.Now(),
		seed: w.rng.Uint64(), told: map[string]int{},
	}
	if w.plan.policy.SoftTimeout > 0 && k == get {
		o.before = w.book.look(w)[entryName(keys[0])]
	}
	o.rng = rand.New(rand.NewPCG(o.seed, 0))
	w.ops = append(w.ops, o)
	ctx := context.WithValue(context.Background(), opKey{}, o)
	if w.rng.IntN(100) < w.plan.bounded {
		d := w.upTo(400*ms) + ms
		o.deadline = o.began.Add(d)
		ctx, o.cancel = context.WithDeadline(ctx, o.deadline)
	} else {
		ctx, o.cancel = context.WithCancel(ctx)
	}
	w.say("%v: p%d %v %s, deadline %v", o, p.id, k, o.key, !o.deadline.IsZero())
	if w.plan.unread {
		p.foreseeMiss()
	}
	o.away = p.breaker.openFor(w.plan.underWay())
	w.wg.Go(func() {
		defer o.cancel()
		o.run(ctx)
		o.took, o.end = time.Now(), w.step()
		w.mu.Lock()
		o.returned = true
		w.mu.Unlock()
		w.history.note("%v returned %s", o, o.result())
	})
}

func (o *op) run(ctx context.Context) {
	g := o.p.guard
	switch o.kind {
	case get:
		if o.w.plan.turns && o.seed%2 == 0 {
			o.runInSteps(ctx)
			return
		}
		r, err := g.Load(ctx, o.key, o.fetch)
		o.value, o.source, o.err = r.Value, r.Source, err
	case reload:
		r, err := g.Load(ctx, o.key, o.fetch, guard.MaxAge(0))
		o.value, o.source, o.err = r.Value, r.Source, err
	case getMany:
		o.runMany(ctx)
	case peek:
		r, err := g.Peek(ctx, o.key)
		o.value, o.source, o.err = r.Value, r.Source, err
	case set:
		o.err = g.Set(ctx, o.key, o.sets())
	case del:
		o.err = g.Delete(ctx, o.key)
	case expire:
		o.err = g.Expire(ctx, o.key)
	case reset:
		o.err = g.Reset(ctx, o.key)
	case delTag:
		o.err = g.DeleteTag(ctx, o.key)
	case expireTag:
		o.err = g.ExpireTag(ctx, o.key)
	}
}

// sets is the value that a Set stores.
func (o *op) sets() string { return fmt.Sprintf("%s set %v", o.key, o) }

func (o *op) result() string {
	if o.kind == getMany {
		return o.manyResult()
	}
	if o.err != nil {
		return "error: " + plain(o.err.Error())
	}
	if o.kind == get || o.kind == peek || o.kind == reload {
		return fmt.Sprintf("%q from %v", o.value, o.source)
	}
	return "done"
}

var hexadecimal = regexp.MustCompile(`[0-9a-f]{16,}`)

// plain cuts the random parts out of a text.
func plain(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return hexadecimal.ReplaceAllString(s, "…")
}

// forget is for the callers of a process that died.
func (o *op) forget() {
	o.forgotten = true
	o.cancel()
}

func (w *world) done(o *op) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return o.returned
}

// A fetch is one run of a caller's fetch function, for one key.
type fetch struct {
	name      string
	ctx       context.Context
	op        *op
	key       string
	token     string // of its lease; empty: none
	start     int    // step
	began     time.Time
	ready     time.Time // it may end from then on
	private   bool
	previewed bool   // its value was shown before its end
	renews    string // the value that it finds to be good still; empty: none
	ending    ending
	heeds     bool
	finish    chan struct{}
	ended     int // step; 0: it runs

	// Of several that are one call of GetMany's fetch. The first decides when all
	// of them end.
	first *fetch     // nil: this is it
	whole ending     // of the call
	rng   *rand.Rand // the call's
}

func (f *fetch) text() string { return f.key + " fetch " + f.name }

// wait returns when the scheduler says that the fetch may end, or with an error.
func (f *fetch) wait() error {
	var ended <-chan struct{}
	if f.heeds {
		ended = f.ctx.Done()
	}
	select {
	case <-f.finish:
		return nil
	case <-ended:
		return f.ctx.Err()
	case <-f.op.p.dead:
		return errDead
	}
}

// readyAfter draws when a fetch that starts now may end.
func (p *plan) readyAfter(rng *rand.Rand) time.Time {
	d := time.Duration(rng.Int64N(int64(p.longest)))
	if rng.IntN(100) < p.hanging {
		d = time.Hour
	}
	return time.Now().Add(d)
}

type ending byte

const (
	value ending = iota
	failure
	panics
	exits
	notFound
	retryAfter
	panicsError
	endings
)

var errUpstream = errors.New("upstream")

// fail ends a fetch as was drawn: by a panic, with its goroutine or with an error;
// nil: it has a value.
func (o *op) fail(rng *rand.Rand, e ending, text string) error {
	switch e {
	case value:
		return nil
	case panics:
		panic(text)
	case panicsError:
		panic(fmt.Errorf("%w: %s", errUpstream, text))
	case exits:
		runtime.Goexit()
	case notFound:
		return fmt.Errorf("%w: %s", guard.ErrNotFound, text)
	case retryAfter: // everybody is to wait
		return guard.RetryAfter(fmt.Errorf("%w: %s", errUpstream, text), 20*ms+time.Duration(rng.Int64N(int64(200*ms))))
	}
	return fmt.Errorf("%w: %s", errUpstream, text)
}

// fetch is the fetch function of the op's calls.
func (o *op) fetch(ctx context.Context, fl *guard.Fill[string]) (string, error) {
	w := o.w
	f := o.newFetch(ctx, fl)
	w.begin(f)
	defer w.finished(f)
	if err := f.wait(); err != nil {
		return "", err
	}
	return o.answer(f, fl)
}

// newFetch draws the outcome of a fetch.
func (o *op) newFetch(ctx context.Context, fl *guard.Fill[string]) *fetch {
	w := o.w
	o.fetches++
	f := &fetch{
		name: fmt.Sprintf("%v.%d", o, o.fetches), ctx: ctx, op: o, key: o.key, start: w.step(), began: time.Now(),
		finish: make(chan struct{}), heeds: o.rng.IntN(100) >= w.plan.stubborn,
	}
	f.ready = w.plan.readyAfter(o.rng)
	if o.rng.IntN(100) < w.plan.failing {
		f.ending = failure + ending(o.rng.IntN(int(endings-failure)))
	}
	f.private = f.ending == value && o.rng.IntN(100) < w.plan.private
	if f.ending == value && fl.Stale != nil && o.rng.IntN(3) == 0 {
		f.renews, f.private = *fl.Stale, false
	}
	f.token = w.leaseOf(fl.IdempotencyKey)
	return f
}

// answer is the result of a fetch.
func (o *op) answer(f *fetch, fl *guard.Fill[string]) (string, error) {
	w, text := o.w, f.text()
	if err := o.fail(o.rng, f.ending, text); err != nil {
		return "", err
	}
	if f.renews != "" {
		w.renewed(f)
		return "", guard.ErrNotModified
	}
	fl.Private = f.private
	return text, nil
}

// renewed keeps account of a value that a fetch has found to be good still.
func (w *world) renewed(f *fetch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.renewals[f.renews] = append(w.renewals[f.renews], f)
}

// renewal is the last fetch that renewed a value, of those that have the lease; any,
// if token is empty. It is nil if there is none.
func (w *world) renewal(value, token string) *fetch {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range slices.Backward(w.renewals[value]) {
		if token == "" || f.token == token {
			return f
		}
	}
	return nil
}

// begin and finished keep account of the fetches.
func (w *world) begin(f *fetch) {
	w.mu.Lock()
	w.fetches[f.name] = f
	w.running = append(w.running, f)
	w.news = append(w.news, f)
	w.mu.Unlock()
	w.history.note("fetch %s of %s starts in p%d, lease %s", f.name, f.key, f.op.p.id, w.tokenName(f.token))
}

func (w *world) finished(f *fetch) {
	w.mu.Lock()
	f.ended = w.step()
	w.running = without(w.running, f)
	w.mu.Unlock()
	w.history.note("fetch %s ends", f.name)
}
