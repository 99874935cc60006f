package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	locks "github.com/stampedeguard/stampede/lock"
)

const (
	lockTTL   = 3 * time.Second
	longest   = 5 * lockTTL / 2 // of an extension
	lockPoll  = 100 * ms
	lockLook  = 10 * ms // between two looks at all locks
	lockNames = 2
	lockTime  = 6 * lockTTL // of a seed, before the network heals
)

// A lockPlan is the setting of one seed.
type lockPlan struct {
	backends int  // 1: an embedded Redis; more: independent memory stores
	holders  int  // of a semaphore
	noRenew  bool // the locks of some processes end at their TTL
	// clocks are how fast the servers' clocks run: up to 0.9 % faster than that of the
	// processes, which is less than the drift, or slower.
	clocks []float64
	lose   int // requests, and answers, of a thousand
}

// A lockWorld plays package lock: a few processes take locks on servers that lose messages,
// stand still and are cut off, and processes hang, extend, come late and die.
type lockWorld struct {
	plan       lockPlan
	rng        *rand.Rand
	mu         sync.Mutex
	violations []Violation
	held       map[string][]*heldLock
	fence      map[string]uint64 // the largest by name
	grants     int
	healed     bool
	steps      int
	open       []func() locks.Backend // for another process
	processes  sync.WaitGroup
}

// A heldLock is a lock as the checks have seen it.
type heldLock struct {
	k    *locks.Lock
	lost bool // it was seen to be so
}

// RunLocks plays one seed of package lock, and checks its rules:
//
//   - L1: no more locks of a name are valid at a time than may be, by their Context and by
//     Valid; and a lock that was lost does not come back.
//   - L2: each grant of a name has a larger fence than those before.
//   - L3: when all holders are dead, and the network is well, the lock is granted within its
//     TTL.
//
// Unlike [Run] it leaves the order of events at one instant to Go.
func RunLocks(t *testing.T, seed uint64) (r *Result) {
	w := &lockWorld{rng: rand.New(rand.NewPCG(seed, 0x10c5)), held: map[string][]*heldLock{}, fence: map[string]uint64{}}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w.run(t)
		r = &Result{Violations: w.violations, Steps: w.steps, Fetches: w.grants, Elapsed: time.Since(began)}
	})
	return r
}

func (w *lockWorld) violate(rule, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, Violation{rule, w.steps, fmt.Sprintf(format, args...)})
}

// upTo draws a time, below d.
func (w *lockWorld) upTo(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rng.Int64N(int64(d)))
}

func (w *lockWorld) chance(permille int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(1000) < permille
}

func (w *lockWorld) run(t *testing.T) {
	w.plan = lockPlan{backends: []int{1, 1, 3, 3, 5}[w.rng.IntN(5)], holders: 1, noRenew: w.chance(500), lose: 40}
	if w.plan.backends == 1 && w.chance(300) {
		w.plan.holders = 2
	}
	for range w.plan.backends {
		stop := w.serve(t)
		defer stop()
		w.plan.clocks = append(w.plan.clocks, []float64{1 / 1.009, 1, 1.1}[w.rng.IntN(3)])
	}
	stopped := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(stopped) })
	for i := range 4 {
		w.processes.Go(func() { w.process(t, i) })
	}
	time.Sleep(lockTime)
	w.mu.Lock()
	w.healed = true
	w.mu.Unlock()
	w.processes.Wait()
	w.atTheEnd(t)
	close(stopped)
	watching.Wait()
}

// serve opens a place for locks.
func (w *lockWorld) serve(t *testing.T) (stop func()) {
	if w.plan.backends > 1 {
		first, err := cache.NewMemory(cache.MemoryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.open = append(w.open, func() locks.Backend {
			s := first.Join()
			t.Cleanup(func() { _ = s.Close() })
			return locks.On(s)
		})
		return func() {}
	}
	server, err := redistest.StartEmbeddedInMemory()
	if err != nil {
		t.Fatal(err)
	}
	var all []func() error
	w.open = append(w.open, func() locks.Backend {
		client := server.Client()
		s, err := cache.NewRedis(client, cache.Options{Namespace: namespace, RedisTimeout: 50 * ms, BreakerFailures: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		all = append(all, s.Close, client.Close)
		return locks.On(s)
	})
	return func() {
		for _, f := range all {
			_ = f()
		}
		_ = server.Stop()
	}
}

// join returns the backends of a new process, each behind a network of its own.
func (w *lockWorld) join() (all []locks.Backend, links []*link) {
	for i, open := range w.open {
		l := &link{Backend: open(), w: w, clock: w.plan.clocks[i]}
		all, links = append(all, l), append(links, l)
	}
	return all, links
}

// watch looks at all locks again and again.
func (w *lockWorld) watch(stopped chan struct{}) {
	for {
		select {
		case <-stopped:
			return
		case <-time.After(lockLook):
		}
		w.mu.Lock()
		w.steps++
		held := map[string][]*heldLock{}
		for name, all := range w.held {
			held[name] = append(held[name], all...)
		}
		w.mu.Unlock()
		for name, all := range held {
			valid := 0
			for _, h := range all {
				is := h.k.Valid() > 0
				if is != (h.k.Context().Err() == nil) {
					w.violate("L1", "%s: the fence %d is valid for %v, and its context says %v", name, h.k.Fence(), h.k.Valid(), h.k.Context().Err())
				}
				switch {
				case !is:
					h.lost = true
				case h.lost:
					w.violate("L1", "%s: the fence %d was lost, and is valid again", name, h.k.Fence())
				default:
					valid++
				}
			}
			if valid > w.plan.holders {
				w.violate("L1", "%s: %d valid holders", name, valid)
			}
		}
	}
}

// granted takes in a grant. Those that are waited for at a time are in no order: their fences
// count if one was over before the other began.
func (w *lockWorld) granted(k *locks.Lock, before uint64) {
	w.mu.Lock()
	w.grants++
	w.held[k.Name()] = append(w.held[k.Name()], &heldLock{k: k})
	w.fence[k.Name()] = max(w.fence[k.Name()], k.Fence())
	w.mu.Unlock()
	if k.Fence() <= before {
		w.violate("L2", "%s: fence %d after %d", k.Name(), k.Fence(), before)
	}
}

func (w *lockWorld) lastFence(name string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fence[name]
}

func (w *lockWorld) isHealed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.healed
}

// process takes locks until it dies, when another takes its place, or until the end.
func (w *lockWorld) process(t *testing.T, i int) {
	for !w.isHealed() {
		backends, links := w.join()
		l, err := locks.New(locks.Options{TTL: lockTTL, Retry: lockPoll, Holders: w.plan.holders, NoRenew: w.plan.noRenew && i%2 == 0}, backends...)
		if err != nil {
			t.Error(err)
			return
		}
		for alive := true; alive && !w.isHealed(); {
			alive = w.turn(l, links)
		}
		_ = l.Close()
	}
}

// turn takes a lock and does something with it. It reports false if the process has died.
func (w *lockWorld) turn(l *locks.Locker, links []*link) (alive bool) {
	name := fmt.Sprint("n", int(w.upTo(lockNames)))
	time.Sleep(w.upTo(lockTTL / 4))
	before := w.lastFence(name)
	ctx, cancel := context.WithTimeout(context.Background(), lockTTL)
	k, err := l.Lock(ctx, name)
	cancel()
	if err != nil {
		return true
	}
	w.granted(k, before)
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, h := range w.held[name] {
			if h.k == k {
				w.held[name] = append(w.held[name][:i], w.held[name][i+1:]...)
				break
			}
		}
	}()
	if w.chance(80) { // killed: no message of it arrives any more
		for _, link := range links {
			link.cut(time.Hour)
		}
		time.Sleep(lockTTL)
		return false
	}
	if w.chance(250) { // cut off from some servers
		for _, link := range links {
			if w.chance(600) {
				link.cut(w.upTo(2 * lockTTL))
			}
		}
	}
	for end := time.Now().Add(w.upTo(2 * lockTTL)); time.Now().Before(end); {
		time.Sleep(w.upTo(lockTTL / 3))
		if w.chance(200) {
			valid := k.Valid()
			ttl := lockTTL/2 + w.upTo(longest-lockTTL/2)
			if err := k.Extend(context.Background(), ttl); valid == 0 && err == nil {
				w.violate("L1", "%s: the fence %d was lost, and is extended", name, k.Fence())
			}
		}
	}
	_ = k.Unlock(context.Background())
	return true
}

// atTheEnd checks that dead holders leave nothing locked: those of the play, and one that dies
// now.
func (w *lockWorld) atTheEnd(t *testing.T) {
	opts := locks.Options{TTL: lockTTL, Retry: lockPoll}
	take := func(l *locks.Locker, name string) *locks.Lock {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 10*lockTTL)
		defer cancel()
		k, err := l.Lock(ctx, name)
		// A slow clock of a server, split votes, and the waiter's own poll.
		if limit := longest*11/10 + 4*lockPoll; err != nil || time.Since(began) > limit {
			w.violate("L3", "%s: granted after %v, want %v at most: %v", name, time.Since(began), limit, err)
		}
		return k
	}
	for i := range lockNames {
		name := fmt.Sprint("n", i)
		backends, links := w.join()
		dies, err := locks.New(opts, backends...)
		if err != nil {
			t.Fatal(err)
		}
		if take(dies, name) == nil {
			continue
		}
		for _, link := range links {
			link.cut(time.Hour)
		}
		backends, _ = w.join()
		l, err := locks.New(opts, backends...)
		if err != nil {
			t.Fatal(err)
		}
		take(l, name)
		_ = l.Close()
		_ = dies.Close()
	}
}

// A link is the network between a process and one backend.
type link struct {
	locks.Backend
	w     *lockWorld
	clock float64

	mu    sync.Mutex
	until time.Time // it is cut
}

var errLinkCut = errors.New("sim: no answer")

func (l *link) cut(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Now().Add(d)
}

// carry carries a call out, or loses it, or its answer.
func carry[A any](ctx context.Context, l *link, call func(context.Context) (A, error)) (answer A, err error) {
	var none A
	lost := func() (A, error) {
		select {
		case <-ctx.Done():
		case <-time.After(30 * ms):
		}
		return none, errLinkCut
	}
	l.mu.Lock()
	cut := time.Now().Before(l.until)
	l.mu.Unlock()
	if cut {
		return lost()
	}
	if l.w.isHealed() {
		return call(ctx)
	}
	if l.w.chance(l.w.plan.lose) {
		return lost()
	}
	time.Sleep(l.w.upTo(6 * ms))
	if answer, err = call(context.WithoutCancel(ctx)); l.w.chance(l.w.plan.lose) {
		return lost()
	}
	time.Sleep(l.w.upTo(6 * ms))
	return answer, err
}

// ttl is a time as the server's clock measures it.
func (l *link) ttl(d time.Duration) time.Duration {
	return time.Duration(float64(d) * l.clock).Round(ms)
}

// Acquire implements [locks.Backend].
func (l *link) Acquire(ctx context.Context, r locks.Request) (locks.Grant, error) {
	r.TTL = l.ttl(r.TTL)
	return carry(ctx, l, func(ctx context.Context) (locks.Grant, error) { return l.Backend.Acquire(ctx, r) })
}

// Extend implements [locks.Backend].
func (l *link) Extend(ctx context.Context, h locks.Hold) (bool, error) {
	h.TTL = l.ttl(h.TTL)
	return carry(ctx, l, func(ctx context.Context) (bool, error) { return l.Backend.Extend(ctx, h) })
}

// Release implements [locks.Backend].
func (l *link) Release(ctx context.Context, h locks.Hold) (bool, error) {
	return carry(ctx, l, func(ctx context.Context) (bool, error) { return l.Backend.Release(ctx, h) })
}
