package cache_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A losingConn loses the answers to scripts while loses is set, and counts the
// scripts.
type losingConn struct {
	net.Conn
	loses *atomic.Bool
	sent  *atomic.Int32
	lost  atomic.Bool
}

func (c *losingConn) Write(b []byte) (int, error) {
	if c.loses.Load() && bytes.Contains(b, []byte("evalsha")) {
		c.sent.Add(1)
		c.lost.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *losingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.lost.Load() {
		_ = c.Conn.Close() // the client looks more than once
		return 0, io.EOF
	}
	return n, err
}

// A script whose answer is lost may have been carried out. An acquire that was sent
// again and executed late would bring a dead lease back to life.
func TestScriptIsNotSentAgainByTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loses atomic.Bool
		var sent atomic.Int32
		o := redistest.RunEmbeddedInMemory(t).Options()
		dial := o.Dialer
		o.MaxRetries = 3 // the client's default
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &losingConn{Conn: conn, loses: &loses, sent: &sent}, err
		}
		client := redis.NewClient(o)
		s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // until the subscription is live
		ask := lasting()
		ask.Once = true
		ctx := t.Context()
		entry := func() *cache.Entry { return &cache.Entry{Kind: cache.Value, TTL: time.Minute} }
		requests := []cache.Request{{Key: "a", Ask: ask}}
		var lease *cache.Lease
		for name, call := range map[string]func() error{
			"acquire":  func() error { _, err := s.Acquire(ctx, "k", ask); return err },
			"set":      func() error { return s.Set(ctx, "k", entry()) },
			"delete":   func() error { return s.Delete(ctx, "k") },
			"fill":     func() error { _, err := s.Fill(ctx, lease, entry()); return err },
			"pipeline": func() error { return s.ReturnMany(ctx, []cache.Return{{Lease: lease}})[0].Err },
		} {
			all := s.AcquireMany(ctx, requests)
			if all[0].Err != nil || all[0].Answer.Verdict != cache.Granted {
				t.Fatal(all[0])
			}
			lease = all[0].Answer.Lease
			sent.Store(0)
			loses.Store(true)
			err := call()
			loses.Store(false)
			if n := sent.Load(); err == nil || n != 1 {
				t.Errorf("%s: %d scripts were sent, error %v; want 1 and an error", name, n, err)
			}
			if err := s.Delete(ctx, "a"); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(s.Close(), client.Close()); err != nil {
			t.Error(err)
		}
	})
}
