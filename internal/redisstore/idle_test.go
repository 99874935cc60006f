package redisstore_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// A counted is a connection that counts the commands on it: each is an array.
type counted struct {
	net.Conn
	commands *atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("*")) {
		c.commands.Add(1)
	}
	return c.Conn.Write(b)
}

func TestProcessPingsOftenOnlyIfThatMatters(t *testing.T) {
	for name, test := range map[string]struct {
		begin    func(*redisstore.Store) (end func())
		min, max int64 // commands in a minute: some 150 of pings
	}{
		"idle": {func(*redisstore.Store) func() { return func() {} }, 1, 30},
		"a feed at leisure": {func(s *redisstore.Store) func() {
			f := s.Follow(func(store.Invalidation) {})
			f.Relax()
			return f.Close
		}, 1, 30},
		"a near cache": {func(s *redisstore.Store) func() { return s.Follow(func(store.Invalidation) {}).Close }, 140, 300},
		"a waiter":     {func(s *redisstore.Store) func() { return s.Watch("k").Close }, 140, 200},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var commands atomic.Int64
				o := redistest.RunEmbeddedInMemory(t).Options()
				dial := o.Dialer
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := dial(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return &counted{conn, &commands}, nil
				}
				client := redis.NewClient(o)
				defer client.Close()
				s, err := redisstore.Open(client, redisstore.Options{Namespace: "test", RedisTimeout: time.Second, BreakerFailures: 2})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				defer test.begin(s)()
				time.Sleep(10 * time.Second)
				commands.Store(0)
				time.Sleep(time.Minute)
				if n := commands.Load(); n < test.min || n > test.max {
					t.Errorf("%d commands in a minute, want %d to %d", n, test.min, test.max)
				}
			})
		})
	}
}

// A link that fails while nothing depends on it is noticed once something does.
func TestSilenceIsNoticedSoonOnceAWaiterComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		l, client := lineTo(t, server, true)
		s := subscribed(t, server, client, redisstore.Options{RedisTimeout: 3 * time.Second})
		s.feed.Relax()
		time.Sleep(30 * time.Second)
		l.deaf.Store(true)
		w := s.store.Watch("k")
		defer w.Close()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s.feed.Epoch() != 0 {
			t.Error("the loss was not noticed")
		}
		l.deaf.Store(false)
	})
}
