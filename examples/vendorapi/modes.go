package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
)

// The ways to ask the vendor.
const (
	modeNone   = "none"   // each request calls it
	modeGuard  = "guard"  // stored quotes are shared, and refreshed by one process
	modeBudget = "budget" // and no more is refreshed than the vendor allows
)

var modes = []string{modeNone, modeGuard, modeBudget}

// How long a quote is good, and how long an old one is better than none.
const (
	fresh = 2 * time.Second
	stale = 5 * time.Minute
)

// A way is a mode in one process: get answers a client, and reports whether the
// answer is stale.
type way struct {
	get   func(ctx context.Context, key string) (stale bool, err error)
	close func() error
}

// openWay opens a mode. Ask calls the vendor.
func openWay(j job, ask func(ctx context.Context, key string, learn *budget.Budget) (string, error)) (*way, error) {
	if j.Mode == modeNone {
		return &way{
			get: func(ctx context.Context, key string) (bool, error) {
				_, err := ask(ctx, key, nil)
				return false, err
			},
			close: func() error { return nil },
		}, nil
	}
	opts, err := redis.ParseURL(j.Redis)
	if err != nil {
		return nil, err
	}
	rdb := redis.NewClient(opts)
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: j.Namespace})
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	policy := guard.Policy{TTL: fresh, Stale: stale}
	closers := []func() error{store.Close, rdb.Close}
	var b *budget.Budget
	if j.Mode == modeBudget {
		limit := budget.Limit{Rate: j.Limit, Per: time.Second, Burst: burst}
		if b, err = budget.New(rdb, "vendor", limit, budget.Options{Namespace: j.Namespace}); err != nil {
			return nil, errors.Join(err, store.Close(), rdb.Close())
		}
		policy.Budget = b
		policy.MaxBudgetWait = time.Second
		closers = append([]func() error{b.Close}, closers...)
	}
	quotes, err := guard.New[string](store, "quotes", policy)
	if err == nil {
		closers = append([]func() error{quotes.Close}, closers...)
	}
	w := &way{close: func() error {
		var errs []error
		for _, c := range closers {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	w.get = func(ctx context.Context, key string) (bool, error) {
		r, err := quotes.Load(ctx, key, func(ctx context.Context, _ *guard.Fill[string]) (string, error) {
			return ask(ctx, key, b)
		})
		return r.Source == guard.Stale, err
	}
	return w, nil
}
