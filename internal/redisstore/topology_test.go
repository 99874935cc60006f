package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// A cable leads to a server in a bubble. It can be cut.
type cable struct {
	server *redistest.Embedded

	hangs chan struct{} // a dial waits until it is closed; nil: none waits

	mu     sync.Mutex
	isCut  bool
	dialed bool
	conns  []net.Conn
}

// wasDialed reports whether a connection was asked for.
func (l *cable) wasDialed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dialed
}

func newCable(t *testing.T) *cable { return &cable{server: redistest.RunEmbeddedInMemory(t)} }

func (l *cable) client(t *testing.T, addr string) *redis.Client {
	o := l.server.Options()
	dial := o.Dialer
	o.Addr, o.DialerRetries = addr, 1
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		l.mu.Lock()
		l.dialed = true
		l.mu.Unlock()
		if l.hangs != nil {
			<-l.hangs
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.isCut {
			return nil, errors.New("the cable is cut")
		}
		conn, err := dial(ctx, network, addr)
		l.conns = append(l.conns, conn)
		return conn, err
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// cut ends all connections; mend lets new ones be made.
func (l *cable) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = true
	for _, c := range l.conns {
		_ = c.Close()
	}
}

func (l *cable) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = false
}

// A fewMasters is a cluster with the masters that a test gives it. Keys are served by one
// of them.
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
	masters := slices.Clone(c.masters)
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

func (c *fewMasters) store(t *testing.T) *redisstore.Store {
	t.Helper()
	s := opened(t, c, redisstore.Options{})
	time.Sleep(5 * time.Second) // until the masters were looked through
	return s
}

// arrives waits for a signal of a watch.
func arrives(t *testing.T, w *store.Watch, want store.Signal) {
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

// removed deletes k. The pool may hold a connection that was cut.
func removed(t *testing.T, s store.Store) {
	t.Helper()
	var err error
	for range 3 {
		if err = remove(t.Context(), s, "k"); err == nil {
			return
		}
	}
	t.Fatal(err)
}

func TestWatchIsConfirmedAgainOnANewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newCable(t)
		s := opened(t, l.client(t, "127.0.0.1:1"), redisstore.Options{})
		w := s.Watch("k")
		defer w.Close()
		arrives(t, w, store.Confirmed)
		l.cut()
		time.Sleep(time.Second)
		l.mend()
		arrives(t, w, store.Confirmed)
		removed(t, s)
		arrives(t, w, store.Deleted)
	})
}

func TestWatchFollowsItsKeyToAnotherMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, now := newCable(t), newCable(t)
		first, second := old.client(t, "127.0.0.1:1"), now.client(t, "127.0.0.1:2")
		c := &fewMasters{Client: now.client(t, "127.0.0.1:3"), masters: []*redis.Client{first, second}}
		s := c.store(t)
		w := s.Watch("k")
		defer w.Close()
		arrives(t, w, store.Confirmed)
		c.change(1, first, second)
		old.cut()
		arrives(t, w, store.Confirmed)
		removed(t, s)
		arrives(t, w, store.Deleted)
	})
}

// The client of a master that has come back at its address is another one, and the old
// one was closed.
func TestReplacedClientOfAMasterIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newCable(t)
		first := l.client(t, "127.0.0.1:1")
		c := &fewMasters{Client: l.client(t, "127.0.0.1:3"), masters: []*redis.Client{first}}
		s := c.store(t)
		c.change(0, l.client(t, "127.0.0.1:1"))
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		granted(t, s, "k")
		if n, err := read(t.Context(), s, "k"); err != nil || n.Found {
			t.Errorf("%+v, %v", n, err)
		}
	})
}

// The invalidations of a new master are missed until it is subscribed to.
func TestNewMasterPutsTheFeedDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, now := newCable(t), newCable(t)
		first := old.client(t, "127.0.0.1:1")
		c := &fewMasters{Client: old.client(t, "127.0.0.1:3"), masters: []*redis.Client{first}}
		s := c.store(t)
		f := s.Follow(func(store.Invalidation) {})
		defer f.Close()
		time.Sleep(time.Second)
		before := f.Epoch()
		if before == 0 {
			t.Fatal("the feed is not live")
		}
		now.hangs = make(chan struct{})
		c.change(0, first, now.client(t, "127.0.0.1:2"))
		for !now.wasDialed() {
			time.Sleep(10 * time.Millisecond)
		}
		if f.Epoch() != 0 {
			t.Error("the feed is live, and one master is not heard")
		}
		close(now.hangs)
		time.Sleep(5 * time.Second)
		if e := f.Epoch(); e == 0 || e == before {
			t.Errorf("with all masters heard the epoch is %d, was %d", e, before)
		}
	})
}

// A switched connection knows whether it was subscribed on.
type switched struct {
	net.Conn
	subscribes atomic.Bool
}

func (c *switched) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("\r\nsubscribe\r\n")) { // the command, not a script that speaks of it
		c.subscribes.Store(true)
	}
	return c.Conn.Write(b)
}

// Behind Sentinel, a master that was replaced goes on answering for a while. The client
// closes its pooled connections to it, and not the subscribed one.
func TestSubscriptionFollowsTheCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := []*redistest.Embedded{redistest.RunEmbeddedInMemory(t), redistest.RunEmbeddedInMemory(t)}
		var mu sync.Mutex
		var conns []*switched
		current := 0
		o := servers[0].Options()
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			conn, err := servers[current].Options().Dialer(ctx, network, addr)
			c := &switched{Conn: conn}
			conns = append(conns, c)
			return c, err
		}
		client := redis.NewClient(o)
		t.Cleanup(func() { _ = client.Close() })
		s := opened(t, client, redisstore.Options{BreakerFailures: 1000})
		time.Sleep(time.Second) // until the subscription is live
		granted(t, s, "before")
		mu.Lock()
		current = 1
		for _, c := range conns {
			if !c.subscribes.Load() {
				_ = c.Close()
			}
		}
		mu.Unlock()
		for began := time.Now(); acquire(t.Context(), s, lasting("k")).Verdict != store.Granted; time.Sleep(50 * time.Millisecond) {
			if time.Since(began) > 2*time.Second {
				t.Fatal("no lease is granted")
			}
		}
		if err := s.Liveness(); err != nil {
			t.Error(err)
		}
	})
}

func TestLooksForMastersAndWatchesDoNotDeadlock(t *testing.T) {
	master := newCable(t).client(t, "127.0.0.1:1")
	s := opened(t, &fewMasters{Client: master, masters: []*redis.Client{master}}, redisstore.Options{})
	defer s.Watch("k").Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		redisstore.RehomeAndDrop(s, 300_000)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("both wait for each other")
	}
}
