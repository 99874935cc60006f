package guard_test

import (
	"context"
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
	for name, change := range map[string]func(t *testing.T, key string){
		"deleted": func(t *testing.T, key string) { must(&world{T: t}, other.Delete(t.Context(), key)) },
		"set":     set,
		"set and deleted": func(t *testing.T, key string) {
			set(t, key)
			must(&world{T: t}, other.Delete(t.Context(), key))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, lose := losesSubscription(t, server)
			w := &world{T: t}
			must(w, g.Set(t.Context(), name, "old"))
			get(w, g, name, never)
			lose()
			change(t, name)
			serves := func() {
				t.Helper()
				if v, _ := g.Get(t.Context(), name, func(context.Context) (string, error) { return "new", nil }); v != "new" {
					t.Fatalf("got %q", v)
				}
				if r, err := g.Peek(t.Context(), name); r.Value == "old" {
					t.Fatalf("peeked %q, %v", r.Value, err)
				}
			}
			serves()
			must(w, server.Pause())
			defer func() { must(w, server.Resume()) }()
			serves()
		})
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
