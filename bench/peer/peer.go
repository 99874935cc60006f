// Package peer puts this library and its peers behind one small interface, each
// configured as its own documentation recommends.
//
// All hold strings, which every one of them stores without a codec, under the
// same TTL, over clients with default options and so with pools of the same
// size.
package peer

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Fetch gets a value from its origin.
type Fetch func(ctx context.Context) (string, error)

// A Cache is one process's end of a system. It is safe for concurrent use.
type Cache interface {
	// Get returns the value, fetched if it is missing.
	Get(ctx context.Context, key string, fetch Fetch) (string, error)
	// Delete invalidates the value as the system's documentation says.
	Delete(ctx context.Context, key string) error
	Close()
}

// Options are the same for all systems.
type Options struct {
	Addr string        // of Redis, host:port
	TTL  time.Duration // for which a value is fresh
}

// A System is one way to cache.
type System struct {
	Name   string
	Module string // the report gives its version
	Link   string // to the documentation that the configuration follows
	Note   string // for readers of its figures

	Ours  bool // this library
	Limit bool // a bare read that fetches and shares nothing: the limit
	Near  bool // answers hits from the process's own memory
	Fleet bool // means to fetch once for all processes, and not once for each

	Open func(Options) (Cache, error)
}

// All returns the systems in the order in which tables list them.
func All() []System {
	return []System{
		stampede(), stampedeNear(),
		goRedis(), rueidisDo(),
		naive(), singleFlight(),
		goRedisCache(), goRedisCacheNear(),
		rueidisAside(), rocksCache(), sturdyCache(), redisLock(),
	}
}

// Missing are systems that could not be built, and the reasons.
var Missing = map[string]string{
	"jetcache-go": "github.com/mgtv-tech/jetcache-go: no version of the module is served by the module proxy, so it is not built here. " +
		"By its documentation it builds on go-redis/cache and shares, as that does, within the process (`Once`); no figure is claimed for it.",
}

// Named returns the system of that name.
func Named(name string) (System, error) {
	for _, s := range All() {
		if s.Name == name {
			return s, nil
		}
	}
	return System{}, fmt.Errorf("peer: no system is called %q", name)
}

// Version returns the version of the system's module in this binary; empty
// where it is this module's own code.
func (s System) Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == s.Module && m.Replace == nil {
			return m.Version
		}
	}
	return ""
}

// client is the client of all systems on go-redis, with its defaults.
func client(o Options) *redis.Client { return redis.NewClient(&redis.Options{Addr: o.Addr}) }
