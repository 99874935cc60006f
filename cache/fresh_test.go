package cache_test

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// A process that has just started, and whose subscription comes late, as its
// machine is busy, waits for it: without it each fresh process would fetch for
// itself.
func TestFreshProcessWaitsForItsSubscription(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	o := server.Options()
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return lateSubscriber{c, 600 * time.Millisecond}, err
	}
	client := redis.NewClient(o)
	defer client.Close()
	s, err := cache.NewRedis(client, cache.Options{Namespace: "fresh", RedisTimeout: 250 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	answer, err := s.Acquire(t.Context(), "key", cache.Ask{TTL: 5 * time.Second, RenewFor: time.Minute})
	if err != nil || answer.Verdict != cache.Granted {
		t.Fatalf("%v, %v", answer.Verdict, err)
	}
}

// A lateSubscriber holds back its SUBSCRIBE.
type lateSubscriber struct {
	net.Conn
	late time.Duration
}

func (c lateSubscriber) Write(b []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(b), []byte("subscribe\r\n")) {
		time.Sleep(c.late)
	}
	return c.Conn.Write(b)
}
