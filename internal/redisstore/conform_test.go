package redisstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/storetest"
)

// mortal is the network of one process. It can be cut off abruptly, as by a SIGKILL, upon
// which the kernel closes the process's sockets.
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
func (s site) backend(t *testing.T) storetest.Backend {
	namespace := "test-" + rand.Text()
	networks := map[store.Store]*mortal{}
	admin := s.client(&mortal{dial: s.dial})
	t.Cleanup(func() { _ = admin.Close() })
	clock, _ := redisstore.TagNames(namespace, "")
	check := func(t *testing.T, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	return storetest.Backend{
		Open: func(t *testing.T) store.Store {
			network := &mortal{dial: s.dial}
			client := s.client(network)
			s, err := open(client, redisstore.Options{Namespace: namespace})
			check(t, err)
			networks[s] = network
			t.Cleanup(func() { _ = client.Close() })
			// Many tests run at once: it may have had no time to find the nodes of a cluster.
			eventually(t, func() bool { _, err := read(t.Context(), s, "none"); return err == nil })
			return s
		},
		Kill: func(_ *testing.T, s store.Store) { networks[s].die() },
		Plant: func(t *testing.T, key string, b []byte) {
			check(t, admin.Set(t.Context(), redisstore.KeyNames(namespace, key, store.Token{})[0], b, 0).Err())
		},
		ForgetTag: func(t *testing.T, tag string) {
			_, record := redisstore.TagNames(namespace, tag)
			check(t, admin.Del(t.Context(), record).Err())
		},
		RewindTags:  func(t *testing.T, n uint64) { check(t, admin.HSet(t.Context(), clock, "n", n).Err()) },
		ForgetClock: func(t *testing.T) { check(t, admin.Del(t.Context(), clock).Err()) },
	}
}

func TestStandaloneConforms(t *testing.T) {
	t.Parallel()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s := site{dial: dialTCP, client: func(network *mortal) redis.UniversalClient {
		o := server.Options()
		o.Dialer = network.Dial
		return redis.NewClient(o)
	}}
	storetest.Run(t, storetest.Harness{New: s.backend, Parallel: true})
}

func TestEmbeddedConformsInFakeTime(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Within: synctest.Test,
		New: func(t *testing.T) storetest.Backend {
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
func TestClusterConforms(t *testing.T) {
	t.Parallel()
	server := redistest.RunCluster(t, redistest.ClusterConfig{})
	s := site{dial: dialTCP, client: func(network *mortal) redis.UniversalClient {
		o := server.Options()
		o.Dialer = network.Dial
		return redis.NewClusterClient(o)
	}}
	storetest.Run(t, storetest.Harness{New: s.backend, Parallel: true})
}

func TestSentinelConforms(t *testing.T) {
	t.Parallel()
	server := redistest.RunSentinel(t, redistest.SentinelConfig{})
	s := site{dial: dialTCP, client: func(network *mortal) redis.UniversalClient {
		o := server.Options()
		o.Dialer = network.Dial
		return redis.NewFailoverClient(o)
	}}
	storetest.Run(t, storetest.Harness{New: s.backend, Parallel: true})
}
