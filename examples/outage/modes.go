package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

var allModes = []string{"none", "singleflight", "guard-no-reserve", "guard"}

// A getter is one process's cache.
type getter interface {
	get(ctx context.Context, key string) error
	close() error
}

type fetchFunc func(ctx context.Context, key string) (string, error)

// open opens the cache of one process.
func (cfg *config) open(mode string, client *redis.Client, fetch fetchFunc) (getter, error) {
	plain := &plain{client: client, fetch: fetch, ttl: cfg.ttl}
	switch mode {
	case "none":
		return plain, nil
	case "singleflight":
		return &shared{plain: plain}, nil
	case "guard", "guard-no-reserve":
		policy := guard.Policy{TTL: cfg.ttl, Near: guard.Near{MaxEntries: cfg.near}}
		if mode == "guard-no-reserve" {
			policy.Reserve.MaxBytes = guard.Off
		}
		return openGuard(client, policy, fetch)
	}
	return nil, fmt.Errorf("no such mode: there are %v", allModes)
}

// plain reads through, and fetches whenever Redis has no value to give.
type plain struct {
	client *redis.Client
	fetch  fetchFunc
	ttl    time.Duration
}

func (p *plain) get(ctx context.Context, key string) error {
	_, err := p.value(ctx, key)
	return err
}

func (p *plain) value(ctx context.Context, key string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond) // the guard's RedisTimeout
	defer cancel()
	if v, err := p.client.Get(ctx, key).Result(); err == nil {
		return v, nil
	}
	v, err := p.fetch(context.WithoutCancel(ctx), key)
	if err == nil {
		_ = p.client.Set(ctx, key, v, p.ttl).Err()
	}
	return v, err
}

func (p *plain) close() error { return nil }

// shared is plain, and callers of one key share its reads and fetches in the process.
type shared struct {
	*plain
	group singleflight.Group
}

func (s *shared) get(ctx context.Context, key string) error {
	_, err, _ := s.group.Do(key, func() (any, error) { return s.value(ctx, key) })
	return err
}

type guarded struct {
	store *cache.Redis
	guard *guard.Guard[string]
	fetch fetchFunc
}

func openGuard(client *redis.Client, policy guard.Policy, fetch fetchFunc) (*guarded, error) {
	s, err := cache.NewRedis(client, cache.Options{Namespace: "outage"})
	if err != nil {
		return nil, err
	}
	g, err := guard.New[string](s, "demo", policy)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &guarded{s, g, fetch}, nil
}

func (g *guarded) get(ctx context.Context, key string) error {
	_, err := g.guard.Get(ctx, key, func(ctx context.Context) (string, error) { return g.fetch(ctx, key) })
	return err
}

func (g *guarded) close() error { return errors.Join(g.guard.Close(), g.store.Close()) }
