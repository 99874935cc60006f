package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

const (
	modeNone         = "none"
	modeSingleflight = "singleflight"
	modeGuard        = "guard"
)

// ttl is how long anything stays in Redis that this program leaves there.
const ttl = time.Minute

type fetchFunc func(ctx context.Context) (string, error)

// A mode is a way to read through a cache.
type mode interface {
	get(ctx context.Context, key string, fetch fetchFunc) (string, error)
	// close ends it and returns the events that make its figures doubtful.
	close() []string
}

func openMode(name string, rdb *redis.Client, namespace string) (mode, error) {
	switch plain := (&aside{rdb, namespace + ":"}); name {
	case modeNone:
		return plain, nil
	case modeSingleflight:
		return &flights{aside: plain}, nil
	case modeGuard:
		return openGuard(rdb, namespace)
	}
	return nil, fmt.Errorf("unknown mode %q", name)
}

// aside is plain cache-aside: read, fetch on a miss, write.
type aside struct {
	rdb    *redis.Client
	prefix string
}

func (a *aside) get(ctx context.Context, key string, fetch fetchFunc) (string, error) {
	v, err := a.rdb.Get(ctx, a.prefix+key).Result()
	if err == nil || !errors.Is(err, redis.Nil) {
		return v, err
	}
	if v, err = fetch(ctx); err != nil {
		return "", err
	}
	return v, a.rdb.Set(ctx, a.prefix+key, v, ttl).Err()
}

func (a *aside) close() []string { return nil }

// flights lets the callers of one process share a cache-aside, read included,
// which is the least this technique can ask of Redis.
type flights struct {
	*aside
	group singleflight.Group
}

func (f *flights) get(ctx context.Context, key string, fetch fetchFunc) (string, error) {
	v, err, _ := f.group.Do(key, func() (any, error) { return f.aside.get(ctx, key, fetch) })
	if err != nil {
		return "", err
	}
	return v.(string), nil
}

// guarded uses this library.
type guarded struct {
	store  *cache.Redis
	values *guard.Guard[string]

	mu    sync.Mutex
	notes []string
}

func openGuard(rdb *redis.Client, namespace string) (*guarded, error) {
	g := &guarded{}
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: namespace, Observer: g})
	if err != nil {
		return nil, err
	}
	values, err := guard.New[string](store, "values", guard.Policy{TTL: ttl, Observer: g})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	g.store, g.values = store, values
	return g, nil
}

func (g *guarded) get(ctx context.Context, key string, fetch fetchFunc) (string, error) {
	return g.values.Get(ctx, key, fetch)
}

func (g *guarded) close() []string {
	_ = g.values.Close()
	_ = g.store.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.notes
}

// Observe keeps the events that would explain a second fetch: while Redis is away, the
// guard lets each process fetch for itself.
func (g *guarded) Observe(e cache.Event) {
	switch e.Kind {
	case cache.Unguarded, cache.BreakerOpened, cache.LeaseLost, cache.SubscriptionLost, cache.LivenessOff:
	default:
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.notes) < 3 {
		g.notes = append(g.notes, fmt.Sprintf("the guard reports %s: %v", e.Kind, e.Err))
	}
}
