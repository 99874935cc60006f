package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// A load makes requests as users would, in the way of the scenario.
type load struct {
	number   int
	traces   trace.Tracer
	scenario atomic.Pointer[string]

	users   *guard.Guard[string] // a near cache, and stale values
	reports *guard.Guard[string] // slow fetches, no stale values
	prices  *guard.Guard[string] // of an upstream with a budget
	fragile *guard.Guard[string] // processes die while they fetch
}

func (l *load) set(name string) { l.scenario.Store(&name) }

func (l *load) is(name string) bool { return *l.scenario.Load() == name }

func (l *load) open(s cache.Store, quota guard.Budget, to cache.Observer) error {
	var errs []error
	open := func(name string, p guard.Policy) *guard.Guard[string] {
		p.Observer = to
		g, err := guard.New[string](s, name, p)
		errs = append(errs, err)
		return g
	}
	l.users = open("users", guard.Policy{
		TTL: 2 * time.Second, Stale: 2 * time.Second, StaleIfError: time.Minute, Near: guard.Near{MaxEntries: 150},
	})
	l.reports = open("reports", guard.Policy{TTL: time.Second, FetchTimeout: 2 * time.Second})
	l.prices = open("prices", guard.Policy{TTL: 5 * time.Second, Budget: quota})
	l.fragile = open("fragile", guard.Policy{TTL: time.Second, FetchTimeout: time.Second, Lease: time.Second, Quarantine: 5 * time.Minute})
	return errors.Join(errs...)
}

func (l *load) close() {
	for _, g := range []*guard.Guard[string]{l.users, l.reports, l.prices, l.fragile} {
		_ = g.Close()
	}
}

// run makes requests until ctx ends.
func (l *load) run(ctx context.Context) {
	var workers sync.WaitGroup
	work := func(name string, n int, pause time.Duration, request func(context.Context) error) {
		for range n {
			workers.Go(func() {
				for ctx.Err() == nil {
					rctx, span := l.traces.Start(ctx, "GET /"+name)
					_ = request(rctx) // it is counted
					span.End()
					select {
					case <-time.After(pause/2 + rand.N(pause)):
					case <-ctx.Done():
					}
				}
			})
		}
	}
	work("users", 16, 10*time.Millisecond, l.user)
	work("reports", 12, 20*time.Millisecond, l.report)
	work("prices", 8, 40*time.Millisecond, l.price)
	work("fragile", 1, 100*time.Millisecond, l.die)
	work("changes", 1, 100*time.Millisecond, l.change)
	workers.Wait()
}

var errOrigin = errors.New("the origin answered 503")

// origin takes its time, and fails in its scenario.
func (l *load) origin(ctx context.Context, takes time.Duration) (string, error) {
	select {
	case <-time.After(takes/2 + rand.N(takes)):
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if l.is(failing) && rand.IntN(3) > 0 {
		return "", errOrigin
	}
	return "a value", nil
}

func (l *load) user(ctx context.Context) error {
	key := fmt.Sprintf("user-%d", min(rand.IntN(200), rand.IntN(200)))
	_, err := l.users.Get(ctx, key, func(ctx context.Context) (string, error) { return l.origin(ctx, 30*time.Millisecond) })
	return err
}

func (l *load) report(ctx context.Context) error {
	takes := 200 * time.Millisecond
	if l.is(failing) {
		takes = 1300 * time.Millisecond
	}
	_, err := l.reports.Get(ctx, fmt.Sprintf("report-%d", rand.IntN(3)), func(ctx context.Context) (string, error) { return l.origin(ctx, takes) })
	return err
}

func (l *load) price(ctx context.Context) error {
	key := fmt.Sprintf("price-%d", rand.IntN(50))
	if l.is(failing) || l.is(noRedis) {
		key = fmt.Sprintf("price-%d", rand.Int()) // a crawler: each request is a miss
	}
	_, err := l.prices.Get(ctx, key, func(ctx context.Context) (string, error) { return l.origin(ctx, 20*time.Millisecond) })
	return err
}

func (l *load) change(ctx context.Context) error {
	return l.users.Delete(ctx, fmt.Sprintf("user-%d", rand.IntN(200)))
}

// die asks for keys whose fetch kills the process. "fragile" kills the first process at
// its first attempt: the second process takes the lease over. "poison" kills the first
// process at each attempt: it is quarantined.
func (l *load) die(ctx context.Context) error {
	if l.number == 1 && l.is(failing) { // it stays quarantined for a while
		_, err := l.fragile.Get(ctx, "poison", func(context.Context) (string, error) { return "a value", nil })
		return err
	}
	if !l.is(dying) {
		return nil
	}
	fetch := func(always bool) func(context.Context, *guard.Fill[string]) (string, error) {
		return func(ctx context.Context, f *guard.Fill[string]) (string, error) {
			select {
			case <-time.After(300 * time.Millisecond): // the second process waits by now
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
			if l.number == 1 && (always || f.Attempt == 1) {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return "a value", nil
		}
	}
	if l.number == 1 {
		if _, err := l.fragile.Load(ctx, "poison", fetch(true)); !errors.Is(err, guard.ErrQuarantined) {
			return err
		}
	} else {
		time.Sleep(50 * time.Millisecond)
	}
	_, err := l.fragile.Load(ctx, fmt.Sprintf("fragile-%d", time.Now().Unix()/2), fetch(false))
	return err
}
