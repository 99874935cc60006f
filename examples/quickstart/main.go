// Command quickstart gets one value through a guard, twice, and prints where
// each came from: the first call fetches it, the second finds it in Redis.
//
//	go run ./examples/quickstart
//
// It needs no Redis: without REDIS_URL it starts an embedded one. With one, a
// value that an earlier run left is found by both calls, and then served stale.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

type quote struct {
	Pair  string
	Price float64
}

func main() {
	log.SetFlags(0)
	if err := run(context.Background()); err != nil {
		log.Fatal("quickstart: ", err)
	}
}

func run(ctx context.Context) error {
	opts, stop, err := redisOptions()
	if err != nil {
		return err
	}
	defer stop()
	rdb := redis.NewClient(opts)
	defer rdb.Close()

	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "quickstart"})
	if err != nil {
		return err
	}
	defer store.Close()

	quotes, err := guard.New[quote](store, "quotes", guard.Policy{
		TTL:   time.Minute, // fresh for
		Stale: time.Hour,   // then served while one process refreshes it, or while the vendor fails
	})
	if err != nil {
		return err
	}
	defer quotes.Close()

	for range 2 {
		start := time.Now()
		// Get says less; Load also tells where the value comes from.
		r, err := quotes.Load(ctx, "EURUSD", askVendor)
		if err != nil {
			return err
		}
		fmt.Printf("%s %.4f  from %-7s in %v\n", r.Value.Pair, r.Value.Price, r.Source,
			time.Since(start).Round(100*time.Microsecond))
	}
	return nil
}

// askVendor stands for the slow or expensive call that is worth guarding.
func askVendor(ctx context.Context, _ *guard.Fill[quote]) (quote, error) {
	select {
	case <-time.After(200 * time.Millisecond):
		return quote{Pair: "EURUSD", Price: 1.0842}, nil
	case <-ctx.Done():
		return quote{}, context.Cause(ctx)
	}
}

// redisOptions are those of REDIS_URL, or of a Redis started here.
func redisOptions() (*redis.Options, func(), error) {
	if url := os.Getenv("REDIS_URL"); url != "" {
		opts, err := redis.ParseURL(url)
		if err != nil {
			return nil, nil, fmt.Errorf("REDIS_URL: %w", err)
		}
		return opts, func() {}, nil
	}
	srv := miniredis.NewMiniRedis()
	srv.ClockTTL(true)
	if err := srv.Start(); err != nil {
		return nil, nil, err
	}
	return &redis.Options{Addr: srv.Addr()}, srv.Close, nil
}
