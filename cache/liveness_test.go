package cache_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// A subscribing store is in a bubble, and what happens to its subscription is observed.
type subscribing struct {
	*testing.T
	store  *cache.Redis
	server *redistest.Embedded
	feed   *cache.Feed

	mu     sync.Mutex
	events []cache.Event
	onLoss func() // called when the subscription is lost
}

func (s *subscribing) Observe(e cache.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	if e.Kind == cache.SubscriptionLost && s.onLoss != nil {
		s.onLoss()
		s.onLoss = nil
	}
}

// times is how often an event was observed.
func (s *subscribing) times(kind cache.EventKind) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// subscribe makes a store on the client, which is one of the server.
func subscribe(t *testing.T, server *redistest.Embedded, client redis.UniversalClient, opts cache.Options) *subscribing {
	t.Helper()
	s := &subscribing{T: t, server: server}
	opts.Namespace, opts.Observer = "app", s
	store, err := cache.NewRedis(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s.store = store
	s.feed = store.Follow(func(cache.Invalidation) {})
	t.Cleanup(s.feed.Close)
	return s
}

// granted acquires a key, in no more fake time than given, and releases it.
func (s *subscribing) granted(within time.Duration) {
	s.Helper()
	began := time.Now()
	a, err := s.store.Acquire(s.Context(), "k", cache.Ask{TTL: time.Minute, Window: time.Hour})
	if err != nil || a.Verdict != cache.Granted {
		s.Fatalf("acquire: %+v, %v", a, err)
	}
	if took := time.Since(began); took > within {
		s.Errorf("it took %v", took)
	}
	if err := s.store.Release(s.Context(), a.Lease); err != nil {
		s.Error(err)
	}
}

// watched reports whether a lease is granted to a process that is watched.
func (s *subscribing) watched() bool {
	s.Helper()
	a, err := s.store.Acquire(s.Context(), "watched?", cache.Ask{TTL: time.Minute, Window: time.Hour})
	if err != nil || a.Verdict != cache.Granted {
		s.Fatalf("acquire: %+v, %v", a, err)
	}
	lease, err := s.server.Get("app:{watched?}:lease")
	if err != nil {
		s.Fatal(err)
	}
	if err := s.store.Release(s.Context(), a.Lease); err != nil {
		s.Error(err)
	}
	return lease[len(lease)-1] == '1'
}

// answering has the server answer a command with an error, for as long as on is set.
func answering(s *redistest.Embedded, command, reply string) (on *atomic.Bool) {
	on = &atomic.Bool{}
	on.Store(true)
	s.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
		if cmd != command || !on.Load() {
			return false
		}
		if reply == "" {
			c.Close()
		} else {
			c.WriteError(reply)
		}
		return true
	})
	return on
}

func TestRefusedSubscriptionTurnsLivenessOff(t *testing.T) {
	for name, c := range map[string]struct{ reply, advice string }{
		"unknown command": {"ERR unknown command 'subscribe'", "use a server or proxy that supports it"},
		"command denied":  {"NOPERM User app has no permissions to run the 'subscribe' command", "grant the Redis user +subscribe"},
		"channel denied":  {"NOPERM No permissions to access a channel", "grant the Redis user &app:*"},
		"proxy":           {"invalid request", "use a server or proxy that supports it"},
	} {
		for _, disabled := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := redistest.RunEmbeddedInMemory(t)
					answering(server, "SUBSCRIBE", c.reply)
					s := subscribe(t, server, server.Client(), cache.Options{DisableLiveness: disabled})
					s.granted(10 * time.Millisecond)
					synctest.Wait()
					if err := s.store.Liveness(); err == nil || !strings.Contains(err.Error(), c.advice) || !strings.Contains(err.Error(), c.reply) {
						t.Errorf("Liveness() = %v", err)
					}
					time.Sleep(5 * time.Minute)
					s.granted(0)
					if n := s.times(cache.LivenessOff); n != 1 {
						t.Errorf("it was told %d times that liveness is off", n)
					}
					if s.feed.Epoch() != 0 {
						t.Error("near caches are in use")
					}
				})
			})
		}
	}
}

func TestTransientErrorsLeaveLivenessOn(t *testing.T) {
	for _, reply := range []string{
		"LOADING Redis is loading the dataset in memory",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"ERR max number of clients reached",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"CLUSTERDOWN The cluster is down",
		"BUSY Redis is busy running a script.",
	} {
		t.Run(strings.Fields(reply)[0], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := redistest.RunEmbeddedInMemory(t)
				on := answering(server, "SUBSCRIBE", reply)
				s := subscribe(t, server, server.Client(), cache.Options{})
				for range 10 {
					time.Sleep(200 * time.Millisecond)
					_, _ = s.store.Acquire(t.Context(), "k", cache.Ask{TTL: time.Second, Window: time.Hour})
				}
				on.Store(false)
				time.Sleep(time.Second)
				s.granted(0)
				if n, err := s.times(cache.LivenessOff), s.store.Liveness(); n > 0 || err != nil {
					t.Errorf("it was told %d times that liveness is off: %v", n, err)
				}
				if !s.watched() || s.feed.Epoch() == 0 {
					t.Errorf("watched: %v, near caches in use: %v", s.watched(), s.feed.Epoch() != 0)
				}
			})
		})
	}
}

func TestLivenessComesBackOnceSubscribeIsAllowed(t *testing.T) {
	for _, command := range []string{"SUBSCRIBE", "PUBSUB"} {
		t.Run(command, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := redistest.RunEmbeddedInMemory(t)
				on := answering(server, command, "NOPERM this user has no permissions to run the '"+strings.ToLower(command)+"' command")
				s := subscribe(t, server, server.Client(), cache.Options{})
				time.Sleep(time.Minute)
				if s.store.Liveness() == nil || s.watched() {
					t.Fatalf("while it is refused: %v, watched: %v", s.store.Liveness(), s.watched())
				}
				on.Store(false)
				time.Sleep(time.Minute)
				if err := s.store.Liveness(); err != nil || !s.watched() || s.feed.Epoch() == 0 {
					t.Errorf("later: %v, watched: %v, near caches in use: %v", err, s.watched(), s.feed.Epoch() != 0)
				}
				if off, on := s.times(cache.LivenessOff), s.times(cache.LivenessOn); off != 1 || on != 1 {
					t.Errorf("it was told %d times that liveness is off, %d times that it is on", off, on)
				}
			})
		})
	}
}

// A connection that is refused again and again, here by its pings, is of no use between.
func TestFlappingSubscriptionLeavesLivenessOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		client := server.Options()
		deny := &atomic.Bool{}
		server.Server().SetPreHook(refusedPings(deny))
		s := subscribe(t, server, redis.NewClient(client), cache.Options{})
		deny.Store(true)
		time.Sleep(10 * time.Minute)
		s.granted(0)
		if off, on := s.times(cache.LivenessOff), s.times(cache.LivenessOn); off != 1 || on != 0 {
			t.Errorf("it was told %d times that liveness is off, %d times that it is on", off, on)
		}
	})
}

func refusedPings(deny *atomic.Bool) server.Hook {
	return func(c *server.Peer, cmd string, _ ...string) bool {
		if cmd != "PING" || !deny.Load() {
			return false
		}
		c.WriteError("NOPERM this user has no permissions to run the 'ping' command")
		return true
	}
}

// A split client subscribes at another server than the one that its commands go to, as
// behind a proxy that spreads connections.
type split struct {
	*redis.Client
	elsewhere *redis.Client
	together  atomic.Bool
}

func (c *split) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	if c.together.Load() {
		return c.Client.Subscribe(ctx, channels...)
	}
	return c.elsewhere.Subscribe(ctx, channels...)
}

func TestSubscriptionUnseenByScriptsTurnsLivenessOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		client := &split{Client: server.Client(), elsewhere: redistest.RunEmbeddedInMemory(t).Client()}
		s := subscribe(t, server, client, cache.Options{})
		for began := time.Now(); s.store.Liveness() == nil; {
			if time.Since(began) > 4*time.Second {
				t.Fatal("liveness is still on")
			}
			if s.feed.Epoch() != 0 {
				t.Fatal("near caches are in use")
			}
			time.Sleep(time.Millisecond)
		}
		if err := s.store.Liveness(); !strings.Contains(err.Error(), "scripts have not seen") {
			t.Error(err)
		}
		s.granted(0)
		for range 1000 {
			time.Sleep(100 * time.Millisecond)
			if s.feed.Epoch() != 0 {
				t.Fatal("near caches are in use")
			}
		}
		client.together.Store(true)
		time.Sleep(time.Minute)
		if err := s.store.Liveness(); err != nil || !s.watched() || s.feed.Epoch() == 0 {
			t.Errorf("with one server for both: %v, watched: %v, near caches in use: %v", err, s.watched(), s.feed.Epoch() != 0)
		}
	})
}

// A proxy may close the connection over a command that it does not know.
func TestConnectionClosedOnSubscribeTurnsLivenessOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		answering(server, "SUBSCRIBE", "")
		s := subscribe(t, server, server.Client(), cache.Options{})
		if _, err := s.store.Acquire(t.Context(), "k", cache.Ask{TTL: time.Second, Window: time.Hour}); !errors.Is(err, cache.ErrUnavailable) {
			t.Errorf("at first: %v", err)
		}
		time.Sleep(4 * time.Second)
		s.granted(0)
		if s.store.Liveness() == nil {
			t.Error("liveness is on")
		}
	})
}

// The connections of a line can be broken.
type line struct {
	to    func(context.Context, string, string) (net.Conn, error)
	heeds bool // dials end with their context

	mu    sync.Mutex
	conns []*lineConn
	wait  chan struct{} // dials wait until it is closed; nil: they don't

	deaf  atomic.Bool  // writes fail
	dials atomic.Int64 // that were begun
}

type lineConn struct {
	net.Conn
	l *line
}

func (c *lineConn) Write(b []byte) (int, error) {
	if c.l.deaf.Load() {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (l *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.dials.Add(1)
	if !l.heeds {
		ctx = context.WithoutCancel(ctx)
	}
	l.mu.Lock()
	wait := l.wait
	l.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	conn, err := l.to(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &lineConn{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	return c, nil
}

// hang has dials wait until they are let go.
func (l *line) hang() (release func()) {
	wait := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wait = wait
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wait = nil
		close(wait)
	})
}

// cut closes all connections.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// lineTo is a line to the server, and a client that goes by it.
func lineTo(t *testing.T, server *redistest.Embedded, heeds bool) (*line, *redis.Client) {
	t.Helper()
	o := server.Options()
	l := &line{to: o.Dialer, heeds: heeds}
	if l.to == nil {
		l.to = new(net.Dialer).DialContext
	}
	o.Dialer, o.DialTimeout = l.dial, time.Minute
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return l, client
}

// The client itself would dial anew before it tells of the loss.
func TestLostSubscriptionPutsFeedsDownAtOnce(t *testing.T) {
	for name, loss := range map[string]struct {
		lose   func(*line, *subscribing)
		within time.Duration
	}{
		"closed":          {func(l *line, _ *subscribing) { l.cut() }, 0},
		"write of a ping": {func(l *line, _ *subscribing) { l.deaf.Store(true) }, between},
		"write of a subscribe": {func(l *line, s *subscribing) {
			l.deaf.Store(true)
			s.Cleanup(s.store.Watch("k").Close)
		}, 0},
		"write of an unsubscribe": {func(l *line, s *subscribing) {
			w := s.store.Watch("k")
			synctest.Wait()
			w.Close()
			l.deaf.Store(true)
		}, between},
	} {
		for _, heeds := range []bool{true, false} { // the client's own dialer for TLS does not
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := redistest.RunEmbeddedInMemory(t)
					l, client := lineTo(t, server, heeds)
					s := subscribe(t, server, client, cache.Options{RedisTimeout: 3 * time.Second})
					time.Sleep(5*between + time.Millisecond) // a ping was just sent
					if s.feed.Epoch() == 0 {
						t.Fatal("the feed was never up")
					}
					release := func() {}
					if heeds {
						release = l.hang()
					}
					dials := l.dials.Load()
					s.onLoss = func() { dials = l.dials.Load() - dials }
					loss.lose(l, s)
					synctest.Wait()
					time.Sleep(loss.within)
					synctest.Wait()
					if s.feed.Epoch() != 0 {
						t.Errorf("the feed is up %v later", loss.within)
					}
					if dials != 0 {
						t.Errorf("the client began %d dials before the loss was known", dials)
					}
					release()
					l.deaf.Store(false)
					time.Sleep(30 * time.Second)
					if s.feed.Epoch() == 0 {
						t.Error("the feed does not come up again")
					}
				})
			})
		}
	}
}

// A wrapper may subscribe by a client that the store can't keep from dialing. Then the
// silence of the connection tells.
func TestFeedsGoDownEvenIfTheClientDials(t *testing.T) {
	server := redistest.RunEmbedded(t)
	l, client := lineTo(t, server, false)
	s := subscribe(t, server, &split{Client: server.Client(), elsewhere: client}, cache.Options{RedisTimeout: time.Minute})
	eventually(t, func() bool { return s.feed.Epoch() != 0 })
	release := l.hang()
	defer release()
	began := time.Now()
	l.cut()
	eventually(t, func() bool { return s.feed.Epoch() == 0 })
	if took := time.Since(began); took > 5*time.Second { // two, and some for a busy machine
		t.Errorf("it took %v", took)
	}
}
