package cache_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/cache/cachetest"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// mortal is the network of one process: it can be cut off abruptly, as by a
// SIGKILL, upon which the kernel closes its sockets.
type mortal struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

var errDead = errors.New("the process is dead")

func (m *mortal) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil, errDead
	}
	c, err := m.dial(ctx, network, addr)
	if err == nil {
		m.conns = append(m.conns, c)
	}
	return c, err
}

func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	for _, c := range m.conns {
		_ = c.Close()
	}
}

// dialTCP is the dialer of a client that is given none.
func dialTCP(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
}

// A site is a Redis that processes of a test connect to.
type site struct {
	// client connects one process through its network.
	client func(network *mortal) redis.UniversalClient
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
}

// backend is a namespace of its own on the site.
func (s site) backend(t *testing.T) cachetest.Backend {
	namespace := "test-" + rand.Text()
	networks := map[cache.Store]*mortal{}
	admin := s.client(&mortal{dial: s.dial})
	t.Cleanup(func() { _ = admin.Close() })
	return cachetest.Backend{
		Open: func(t *testing.T) cache.Store {
			network := &mortal{dial: s.dial}
			client := s.client(network)
			store, err := cache.NewRedis(client, cache.Options{Namespace: namespace})
			if err != nil {
				t.Fatal(err)
			}
			networks[store] = network
			t.Cleanup(func() { _ = client.Close() })
			return store
		},
		Kill: func(_ *testing.T, s cache.Store) { networks[s].die() },
		Plant: func(t *testing.T, key string, b []byte) {
			names, err := cache.KeyNames(namespace, key, cache.Token{})
			if err != nil {
				t.Fatal(err)
			}
			if err := admin.Set(t.Context(), names[0], b, 0).Err(); err != nil {
				t.Fatal(err)
			}
		},
		ForgetTag: func(t *testing.T, tag string) {
			_, record, err := cache.TagNames(namespace, tag)
			if err := errors.Join(err, admin.Del(t.Context(), record).Err()); err != nil {
				t.Fatal(err)
			}
		},
		RewindTags: func(t *testing.T, n uint64) {
			clock, _, err := cache.TagNames(namespace, "")
			if err := errors.Join(err, admin.HSet(t.Context(), clock, "n", n).Err()); err != nil {
				t.Fatal(err)
			}
		},
		ForgetClock: func(t *testing.T) {
			clock, _, err := cache.TagNames(namespace, "")
			if err := errors.Join(err, admin.Del(t.Context(), clock).Err()); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func TestRedisStandaloneConforms(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s := site{dial: dialTCP, client: func(network *mortal) redis.UniversalClient {
		o := server.Options()
		o.Dialer = network.Dial
		return redis.NewClient(o)
	}}
	cachetest.Run(t, cachetest.Harness{New: s.backend, Parallel: true})
}

func TestRedisEmbeddedConformsInFakeTime(t *testing.T) {
	cachetest.Run(t, cachetest.Harness{
		Within: synctest.Test,
		New: func(t *testing.T) cachetest.Backend {
			server := redistest.RunEmbeddedInMemory(t)
			s := site{dial: server.Options().Dialer, client: func(network *mortal) redis.UniversalClient {
				o := server.Options()
				o.Dialer = network.Dial
				o.DialerRetries = 1 // a dead process's client ends its dials soon
				return redis.NewClient(o)
			}}
			return s.backend(t)
		},
	})
}

// pitfall 26
func TestRedisClusterConforms(t *testing.T) {
	server := redistest.RunCluster(t, redistest.ClusterConfig{})
	s := site{dial: dialTCP, client: func(network *mortal) redis.UniversalClient {
		o := server.Options()
		o.Dialer = network.Dial
		return redis.NewClusterClient(o)
	}}
	cachetest.Run(t, cachetest.Harness{New: s.backend, Parallel: true})
}

func TestRedisBehindSentinelConforms(t *testing.T) {
	server := redistest.RunSentinel(t, redistest.SentinelConfig{})
	s := site{dial: dialTCP, client: func(network *mortal) redis.UniversalClient {
		o := server.Options()
		o.Dialer = network.Dial
		return redis.NewFailoverClient(o)
	}}
	cachetest.Run(t, cachetest.Harness{New: s.backend, Parallel: true})
}

// pitfall 31: what stands beside an entry may have been changed by hand, or have come
// from elsewhere without its expiry.
func TestForeignCountsAndQuarantinesEnd(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	admin, ctx := server.Client(), t.Context()
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, count := range []string{"", "many", "1.5", "inf", "9223372036854775807"} {
		key := fmt.Sprint("counted", i)
		if err := admin.Set(ctx, "test:{"+key+"}:failures", count, 0).Err(); err != nil {
			t.Fatal(err)
		}
		a, err := s.Acquire(ctx, key, lasting())
		if err != nil || a.Verdict != cache.Granted {
			t.Fatalf("%q: %v, %v, want granted", count, a.Verdict, err)
		}
		if ok, err := s.Fail(ctx, a.Lease, []byte("why"), time.Minute); !ok || err != nil {
			t.Errorf("%q: %v, %v, want a failure that was told", count, ok, err)
		}
		if n := admin.Get(ctx, "test:{"+key+"}:failures").Val(); n != "1" {
			t.Errorf("%q: %q failures in a row, want 1", count, n)
		}
	}
	ask := lasting()
	for _, process := range []string{"process1", "process2", "process3"} {
		if err := admin.SAdd(ctx, "test:{k}:tries", process+"attempt.").Err(); err != nil {
			t.Fatal(err)
		}
	}
	a, err := s.Acquire(ctx, "k", ask)
	if err != nil || a.Verdict != cache.Quarantined || a.TTL != ask.Window {
		t.Errorf("%v for %v, %v, want a quarantine of %v", a.Verdict, a.TTL, err, ask.Window)
	}
	if left := admin.PTTL(ctx, "test:{k}:tries").Val(); left <= 0 {
		t.Errorf("the quarantine ends in %v", left)
	}
}
