package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// A server is the Redis that all processes share: the one that -redis names, or
// an embedded one, which ends with this process.
type server struct {
	url   string
	close func()
}

// openRedis returns a Redis that has answered.
func openRedis(ctx context.Context, url string) (*server, error) {
	s := &server{url: url, close: func() {}}
	if url == "" {
		embedded := miniredis.NewMiniRedis()
		embedded.ClockTTL(true) // entries expire as time passes, as in Redis
		if err := embedded.Start(); err != nil {
			return nil, fmt.Errorf("can't start the embedded Redis: %w", err)
		}
		s.url, s.close = "redis://"+embedded.Addr()+"/0", embedded.Close
	}
	if err := ping(ctx, s.url); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func ping(ctx context.Context, url string) error {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return fmt.Errorf("-redis: %w", err)
	}
	quiet()
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("can't reach Redis at %s: %w", opts.Addr, err)
	}
	return nil
}

// quiet keeps the Redis client's own log out of the output: the important parts are
// returned as errors.
func quiet() {
	logging.Disable()
	log.SetOutput(io.Discard)
}
