package main

import (
	"net/http"
	"time"

	"github.com/darkweak/souin/configurationtypes"
	souin "github.com/darkweak/souin/pkg/middleware"
	chi "github.com/go-chi/stampede"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware"
)

// A system puts a cache in front of a handler. close may be nil.
type system struct {
	name string
	wrap func(redisAddr string, h http.Handler) (wrapped http.Handler, close func(), err error)
}

const lifetime = time.Hour

// systems have their pages in memory. Each is configured as its documentation shows.
var systems = []system{
	{"bare handler", func(_ string, h http.Handler) (http.Handler, func(), error) { return h, nil, nil }},
	// The page is also in Redis, and a purge in another process reaches it here.
	{"stampede, near cache", func(addr string, h http.Handler) (http.Handler, func(), error) {
		client := redis.NewClient(&redis.Options{Addr: addr})
		s, err := cache.NewRedis(client, cache.Options{Namespace: "bench"})
		if err != nil {
			return nil, nil, err
		}
		m, err := middleware.New(s, middleware.Options{Near: guard.Near{MaxEntries: 1000}})
		if err != nil {
			return nil, nil, err
		}
		return m.Wrap(h), func() { _ = m.Close(); _ = s.Close(); _ = client.Close() }, nil
	}},
	// https://docs.souin.io: the handler of its plugins for net/http, with its default storage.
	{"Souin 1.7.8, default storage", func(_ string, h http.Handler) (http.Handler, func(), error) {
		s := souin.NewHTTPCacheHandler(&souin.BaseConfiguration{
			DefaultCache: &configurationtypes.DefaultCache{TTL: configurationtypes.Duration{Duration: lifetime}},
			LogLevel:     "fatal",
		})
		next := func(w http.ResponseWriter, r *http.Request) error { h.ServeHTTP(w, r); return nil }
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = s.ServeHTTP(w, r, next) }), nil, nil
	}},
	// https://github.com/go-chi/stampede: it shares by path, whatever the response says.
	{"go-chi/stampede 0.6.0", func(_ string, h http.Handler) (http.Handler, func(), error) {
		return chi.Handler(1000, lifetime)(h), nil, nil
	}},
}
