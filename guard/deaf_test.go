package guard_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A process whose subscription is gone, while its commands are answered, learns of a change
// by another process from its own reads.
func TestReserveServesNoValueThatRedisDisowned(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	other := onClient(t, server.Client(), policy())
	set := func(t *testing.T, key string) { must(&world{T: t}, other.Set(t.Context(), key, "new")) }
	del := func(t *testing.T, key string) { must(&world{T: t}, other.Delete(t.Context(), key)) }
	for name, change := range map[string]func(t *testing.T, key string){
		"deleted": del,
		"set":     set,
		"set and deleted": func(t *testing.T, key string) {
			set(t, key)
			del(t, key)
		},
	} {
		for reader, opts := range map[string][]guard.CallOption{"any age": nil, "max age": {guard.MaxAge(time.Hour)}} {
			t.Run(name+", read at "+reader, func(t *testing.T) {
				g, lose := losesSubscription(t, server)
				w, key := &world{T: t}, name+reader
				must(w, g.Set(t.Context(), key, "old"))
				get(w, g, key, never)
				lose()
				change(t, key)
				fails := func(context.Context) (string, error) { return "", errors.New("origin is away") }
				if v, err := g.Get(t.Context(), key, fails, opts...); v == "old" {
					t.Fatalf("got %q, %v", v, err)
				}
				must(w, server.Pause())
				defer func() { must(w, server.Resume()) }()
				if v, err := g.Get(t.Context(), key, fails); v == "old" {
					t.Fatalf("got %q, %v, while Redis is away", v, err)
				}
				if r, err := g.Peek(t.Context(), key); r.Value == "old" {
					t.Fatalf("peeked %q, %v", r.Value, err)
				}
			})
		}
	}
}

// losesSubscription opens a guard that can lose its subscription for the rest of the test:
// new connections are not answered.
func losesSubscription(t *testing.T, server *redistest.Server) (g *guard.Guard[string], lose func()) {
	t.Helper()
	var silent atomic.Bool
	over := make(chan struct{})
	o := server.Options()
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if silent.Load() {
			select {
			case <-ctx.Done():
			case <-over:
			}
			return nil, context.DeadlineExceeded
		}
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	heard := heard{up: make(chan struct{}, 1), lost: make(chan struct{}, 1)}
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 30 * time.Millisecond, Observer: heard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	g = (&world{T: t}).guard(s, policy())
	t.Cleanup(func() { close(over) })
	<-heard.up
	return g, func() {
		silent.Store(true)
		must(&world{T: t}, server.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
		<-heard.lost
	}
}

// A heard tells of a store's subscription.
type heard struct{ up, lost chan struct{} }

func (h heard) Observe(e cache.Event) {
	c := h.up
	switch e.Kind {
	case cache.SubscriptionLost:
		c = h.lost
	case cache.SubscriptionUp:
	default:
		return
	}
	select {
	case c <- struct{}{}:
	default:
	}
}
