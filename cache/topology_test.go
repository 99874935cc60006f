package cache_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A cable is a way to a server in a bubble, which can be cut.
type cable struct {
	server *redistest.Embedded

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func (l *cable) client(t *testing.T, addr string) *redis.Client {
	o := l.server.Options()
	dial := o.Dialer
	o.Addr, o.DialerRetries = addr, 1
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.cut {
			return nil, errors.New("the line is cut")
		}
		conn, err := dial(ctx, network, addr)
		l.conns = append(l.conns, conn)
		return conn, err
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// set cuts the line, with all its connections, or mends it.
func (l *cable) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	for _, c := range l.conns {
		if cut {
			_ = c.Close()
		}
	}
}

// A fewMasters is a cluster that has as many masters as it says. Scripts go to the
// one that serves all keys.
type fewMasters struct {
	*redis.Client

	mu      sync.Mutex
	masters []*redis.Client
	serves  int
}

func (c *fewMasters) MasterForKey(context.Context, string) (*redis.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.masters[c.serves], nil
}

func (c *fewMasters) ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	c.mu.Lock()
	masters := append([]*redis.Client(nil), c.masters...)
	c.mu.Unlock()
	for _, m := range masters {
		if err := f(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func (c *fewMasters) ReloadState(context.Context) {}

func (c *fewMasters) change(serves int, masters ...*redis.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serves, c.masters = serves, masters
}

func (c *fewMasters) store(t *testing.T) *cache.Redis {
	t.Helper()
	s, err := cache.NewRedis(c, cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	time.Sleep(5 * time.Second) // until the masters were looked through
	return s
}

// arrives waits for a signal of a watch.
func arrives(t *testing.T, w *cache.Watch, want cache.Signal) {
	t.Helper()
	timeout := time.After(10 * time.Second)
	for {
		select {
		case m := <-w.C:
			if m.Signal == want {
				return
			}
		case <-timeout:
			t.Fatalf("%v does not arrive", want)
		}
	}
}

// deletes deletes k. The pool may hold a connection that was cut.
func deletes(t *testing.T, s *cache.Redis) {
	t.Helper()
	var err error
	for range 3 {
		if err = s.Delete(t.Context(), "k"); err == nil {
			return
		}
	}
	t.Fatal(err)
}

func TestWatchIsConfirmedAgainOnANewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &cable{server: redistest.RunEmbeddedInMemory(t)}
		s, err := cache.NewRedis(l.client(t, "127.0.0.1:1"), cache.Options{Namespace: "test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		w := s.Watch("k")
		defer w.Close()
		arrives(t, w, cache.Confirmed)
		l.set(true)
		time.Sleep(time.Second)
		l.set(false)
		arrives(t, w, cache.Confirmed)
		deletes(t, s)
		arrives(t, w, cache.Deleted)
	})
}

func TestWatchFollowsItsKeyToAnotherMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, now := &cable{server: redistest.RunEmbeddedInMemory(t)}, &cable{server: redistest.RunEmbeddedInMemory(t)}
		first, second := old.client(t, "127.0.0.1:1"), now.client(t, "127.0.0.1:2")
		c := &fewMasters{Client: now.client(t, "127.0.0.1:3"), masters: []*redis.Client{first, second}}
		s := c.store(t)
		w := s.Watch("k")
		defer w.Close()
		arrives(t, w, cache.Confirmed)
		c.change(1, first, second)
		old.set(true)
		arrives(t, w, cache.Confirmed)
		deletes(t, s)
		arrives(t, w, cache.Deleted)
	})
}

// The client of a master that has come back at its address is another, and the old
// one was closed.
func TestReplacedClientOfAMasterIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &cable{server: redistest.RunEmbeddedInMemory(t)}
		first := l.client(t, "127.0.0.1:1")
		c := &fewMasters{Client: l.client(t, "127.0.0.1:3"), masters: []*redis.Client{first}}
		s := c.store(t)
		c.change(0, l.client(t, "127.0.0.1:1"))
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		a, err := s.Acquire(t.Context(), "k", lasting())
		if err != nil || a.Verdict != cache.Granted {
			t.Errorf("%v, %v", a.Verdict, err)
		}
	})
}

// What a new master tells near caches is not heard until it was subscribed to.
func TestNewMasterPutsTheFeedDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, now := &cable{server: redistest.RunEmbeddedInMemory(t)}, &cable{server: redistest.RunEmbeddedInMemory(t)}
		first := old.client(t, "127.0.0.1:1")
		c := &fewMasters{Client: old.client(t, "127.0.0.1:3"), masters: []*redis.Client{first}}
		s := c.store(t)
		f := s.Follow(func(cache.Invalidation) {})
		defer f.Close()
		time.Sleep(time.Second)
		before := f.Epoch()
		if before == 0 {
			t.Fatal("the feed is not live")
		}
		now.set(true)
		c.change(0, first, now.client(t, "127.0.0.1:2"))
		time.Sleep(5 * time.Second)
		if f.Epoch() != 0 {
			t.Error("the feed is live, and one master is not heard")
		}
		now.set(false)
		time.Sleep(5 * time.Second)
		if e := f.Epoch(); e == 0 || e == before {
			t.Errorf("with all masters heard the epoch is %d, was %d", e, before)
		}
	})
}
