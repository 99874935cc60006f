package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
)

var allModes = []string{"none", "singleflight", "guard", "guard-stale-budget"}

// jitter spreads the expiry in all modes: else a cache that was filled at once expires at
// once, which is a trigger of its own.
const jitter = 0.5

// A getter is one process's cache.
type getter interface {
	get(ctx context.Context, key string) error
	close() error
}

type fetchFunc func(ctx context.Context, key string) (string, error)

// open opens the cache of one process.
func (cfg *config) open(mode string, client *redis.Client, fetch fetchFunc) (getter, error) {
	plain := &plain{client: client, fetch: fetch, ttl: cfg.TTL}
	switch mode {
	case "none":
		return plain, nil
	case "singleflight":
		return &shared{plain: plain, timeout: cfg.Timeout}, nil
	case "guard":
		return openGuard(client, guard.Policy{TTL: cfg.TTL, Jitter: jitter}, nil, fetch)
	case "guard-stale-budget":
		capacity := float64(cfg.Workers) / cfg.Fetch.Seconds()
		b, err := budget.New(client, "origin", budget.Limit{Rate: int(0.9 * capacity), Per: time.Second, Burst: cfg.Workers},
			budget.Options{Namespace: "meta", Processes: cfg.Processes})
		if err != nil {
			return nil, err
		}
		p := guard.Policy{TTL: cfg.TTL, Jitter: jitter, Stale: 10 * cfg.TTL, StaleIfError: 20 * cfg.TTL, Budget: b, MaxBudgetWait: cfg.Timeout / 2}
		return openGuard(client, p, b, fetch)
	}
	return nil, fmt.Errorf("no such mode: there are %v", allModes)
}

// plain reads through. A fetch is over for it when its caller's context ends.
type plain struct {
	client *redis.Client
	fetch  fetchFunc
	ttl    time.Duration
}

func (p *plain) get(ctx context.Context, key string) error {
	asked, cancel := context.WithTimeout(ctx, 250*time.Millisecond) // the guard's RedisTimeout
	err := p.client.Get(asked, key).Err()
	cancel()
	if err == nil {
		return nil
	}
	v, err := p.fetch(ctx, key)
	if err != nil {
		return err
	}
	asked, cancel = context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	_ = p.client.Set(asked, key, v, time.Duration((1-jitter*rand.Float64())*float64(p.ttl))).Err()
	return nil
}

func (p *plain) close() error { return nil }

// shared is plain, but callers of one key share one call in the process.
type shared struct {
	*plain
	timeout time.Duration
	group   singleflight.Group
}

func (s *shared) get(ctx context.Context, key string) error {
	result := s.group.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
		defer cancel()
		return nil, s.plain.get(ctx, key)
	})
	select {
	case r := <-result:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

type guarded struct {
	store  *cache.Redis
	guard  *guard.Guard[string]
	budget *budget.Budget // nil: none
	fetch  fetchFunc
}

func openGuard(client *redis.Client, policy guard.Policy, b *budget.Budget, fetch fetchFunc) (*guarded, error) {
	s, err := cache.NewRedis(client, cache.Options{Namespace: "meta"})
	if err != nil {
		return nil, err
	}
	g, err := guard.New[string](s, "demo", policy)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &guarded{s, g, b, fetch}, nil
}

func (g *guarded) get(ctx context.Context, key string) error {
	_, err := g.guard.Get(ctx, key, func(ctx context.Context) (string, error) { return g.fetch(ctx, key) })
	return err
}

func (g *guarded) close() error {
	err := errors.Join(g.guard.Close(), g.store.Close())
	if g.budget != nil {
		err = errors.Join(err, g.budget.Close())
	}
	return err
}
