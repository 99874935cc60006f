package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// events counts the events of a store by their kind.
type events struct {
	mu     sync.Mutex
	all    []store.Event
	onLoss func() // called when a subscription is lost, once
}

func (e *events) report(ev store.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
	if ev.Kind == store.SubscriptionLost && e.onLoss != nil {
		e.onLoss()
		e.onLoss = nil
	}
}

func (e *events) times(kind store.EventKind) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.Kind == kind {
			n++
		}
	}
	return n
}

// A subscriber is a store in a bubble and a near cache that follows it.
type subscriber struct {
	*testing.T
	events

	store  *redisstore.Store
	server *redistest.Embedded
	feed   *store.Feed
}

// subscribed opens a store on the client, which is one of the server.
func subscribed(t *testing.T, server *redistest.Embedded, client redis.UniversalClient, opts redisstore.Options) *subscriber {
	t.Helper()
	s := &subscriber{T: t, server: server}
	opts.Report = s.report
	s.store = opened(t, client, opts)
	s.feed = s.store.Follow(func(store.Invalidation) {})
	t.Cleanup(s.feed.Close)
	return s
}

// isGranted acquires a key, in no more fake time than given, and releases it.
func (s *subscriber) isGranted(within time.Duration) {
	s.Helper()
	began := time.Now()
	l := granted(s, s.store, "k")
	if took := time.Since(began); took > within {
		s.Errorf("the grant took %v", took)
	}
	s.releases(l)
}

func (s *subscriber) releases(l *store.Lease) {
	s.Helper()
	if b := giveBack(s.Context(), s.store, store.Return{Lease: l}); b.Err != nil {
		s.Error(b.Err)
	}
}

// isWatched reports whether leases are granted to a process that is watched.
func (s *subscriber) isWatched() bool {
	s.Helper()
	l := granted(s, s.store, "watched?")
	lease, err := s.server.Get("test:{watched?}:lease")
	if err != nil {
		s.Fatal(err)
	}
	s.releases(l)
	return lease[len(lease)-1] == '1'
}

// isOn checks that liveness and near caches are in use.
func (s *subscriber) isOn() {
	s.Helper()
	err, watched, up := s.store.Liveness(), s.isWatched(), s.feed.Epoch() != 0
	if err != nil || !watched || !up {
		s.Errorf("Liveness() = %v, watched=%v, near caches in use=%v", err, watched, up)
	}
}

// answering has the server answer a command with an error, or close the connection, for as
// long as on is set.
func answering(e *redistest.Embedded, command, reply string) (on *atomic.Bool) {
	on = &atomic.Bool{}
	on.Store(true)
	e.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
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
		"channel denied":  {"NOPERM No permissions to access a channel", "grant the Redis user &test:*"},
		"proxy":           {"invalid request", "use a server or proxy that supports it"},
	} {
		for _, disabled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, disabled=%v", name, disabled), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := redistest.RunEmbeddedInMemory(t)
					answering(server, "SUBSCRIBE", c.reply)
					s := subscribed(t, server, server.Client(), redisstore.Options{DisableLiveness: disabled})
					s.isGranted(10 * time.Millisecond)
					synctest.Wait()
					if err := s.store.Liveness(); !contains(err, c.advice, c.reply) {
						t.Errorf("Liveness() = %v", err)
					}
					time.Sleep(5 * time.Minute)
					s.isGranted(0)
					if n := s.times(store.LivenessOff); n != 1 {
						t.Errorf("the loss was reported %d times", n)
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
				s := subscribed(t, server, server.Client(), redisstore.Options{})
				for range 10 {
					time.Sleep(200 * time.Millisecond)
					acquire(t.Context(), s.store, store.Request{Key: "k", TTL: time.Second, Window: time.Hour})
				}
				on.Store(false)
				time.Sleep(time.Second)
				s.isGranted(0)
				if n := s.times(store.LivenessOff); n > 0 {
					t.Errorf("a loss was reported %d times", n)
				}
				s.isOn()
			})
		})
	}
}

func TestLivenessReturnsOnceSubscribeIsAllowed(t *testing.T) {
	for _, command := range []string{"SUBSCRIBE", "PUBSUB"} {
		t.Run(command, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := redistest.RunEmbeddedInMemory(t)
				on := answering(server, command, "NOPERM this user has no permissions to run the '"+strings.ToLower(command)+"' command")
				s := subscribed(t, server, server.Client(), redisstore.Options{})
				time.Sleep(time.Minute)
				if s.store.Liveness() == nil || s.isWatched() {
					t.Fatalf("while it is refused: %v, watched=%v", s.store.Liveness(), s.isWatched())
				}
				on.Store(false)
				time.Sleep(time.Minute)
				s.isOn()
				if off, on := s.times(store.LivenessOff), s.times(store.LivenessOn); off != 1 || on != 1 {
					t.Errorf("the loss was reported %d times, the return %d times", off, on)
				}
			})
		})
	}
}

// A connection that is refused again and again, here by its pings, is of no use in between.
func TestFlappingSubscriptionLeavesLivenessOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		on := answering(server, "PING", "NOPERM this user has no permissions to run the 'ping' command")
		on.Store(false)
		s := subscribed(t, server, server.Client(), redisstore.Options{})
		on.Store(true)
		time.Sleep(10 * time.Minute)
		s.isGranted(0)
		if off, on := s.times(store.LivenessOff), s.times(store.LivenessOn); off != 1 || on != 0 {
			t.Errorf("the loss was reported %d times, the return %d times", off, on)
		}
	})
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

func TestUnseenSubscriptionTurnsLivenessOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		client := &split{Client: server.Client(), elsewhere: redistest.RunEmbeddedInMemory(t).Client()}
		s := subscribed(t, server, client, redisstore.Options{})
		for began := time.Now(); s.store.Liveness() == nil; time.Sleep(time.Millisecond) {
			if time.Since(began) > 4*time.Second {
				t.Fatal("liveness is still on")
			}
			if s.feed.Epoch() != 0 {
				t.Fatal("near caches are in use")
			}
		}
		if err := s.store.Liveness(); !contains(err, "scripts have not seen") {
			t.Error(err)
		}
		s.isGranted(0)
		for range 1000 {
			time.Sleep(100 * time.Millisecond)
			if s.feed.Epoch() != 0 {
				t.Fatal("near caches are in use")
			}
		}
		client.together.Store(true)
		time.Sleep(time.Minute)
		s.isOn()
	})
}

// A proxy may close the connection over a command that it does not know.
func TestConnectionClosedOnSubscribeTurnsLivenessOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		answering(server, "SUBSCRIBE", "")
		s := subscribed(t, server, server.Client(), redisstore.Options{})
		if a := acquire(t.Context(), s.store, lasting("k")); !errors.Is(a.Err, store.ErrUnavailable) {
			t.Errorf("at first: %v, %v", a.Verdict, a.Err)
		}
		time.Sleep(4 * time.Second)
		s.isGranted(0)
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
	stuck chan struct{} // so do writes

	away  atomic.Bool  // dials fail
	deaf  atomic.Bool  // writes fail
	mute  atomic.Bool  // nothing is received
	dials atomic.Int64 // that were begun
}

type lineConn struct {
	net.Conn
	l *line
}

func (c *lineConn) Write(b []byte) (int, error) {
	c.l.mu.Lock()
	stuck := c.l.stuck
	c.l.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	if c.l.deaf.Load() {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *lineConn) Read(b []byte) (n int, err error) {
	for {
		if n, err = c.Conn.Read(b); err != nil || !c.l.mute.Load() {
			return n, err
		}
	}
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
	if l.away.Load() {
		return nil, errDead
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

// hang has dials, or writes, wait until they are let go.
func (l *line) hang(at *chan struct{}) (release func()) {
	wait := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	*at = wait
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		*at = nil
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
		l.to = dialTCP
	}
	o.Dialer, o.DialTimeout = l.dial, time.Minute
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return l, client
}

// The client itself would dial anew before it tells of the loss.
func TestLostSubscriptionPutsFeedsDownAtOnce(t *testing.T) {
	for name, loss := range map[string]struct {
		lose   func(*line, *subscriber)
		within time.Duration
	}{
		"closed":          {func(l *line, _ *subscriber) { l.cut() }, 0},
		"write of a ping": {func(l *line, _ *subscriber) { l.deaf.Store(true) }, pingEvery},
		"write of a subscribe": {func(l *line, s *subscriber) {
			l.deaf.Store(true)
			s.Cleanup(s.store.Watch("k").Close)
		}, 0},
		"write of an unsubscribe": {func(l *line, s *subscriber) {
			w := s.store.Watch("k")
			synctest.Wait()
			w.Close()
			l.deaf.Store(true)
		}, pingEvery},
	} {
		for _, heeds := range []bool{true, false} { // the client's own dialer for TLS does not
			t.Run(fmt.Sprintf("%s, heeds=%v", name, heeds), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := redistest.RunEmbeddedInMemory(t)
					l, client := lineTo(t, server, heeds)
					s := subscribed(t, server, client, redisstore.Options{RedisTimeout: 3 * time.Second})
					time.Sleep(5*pingEvery + time.Millisecond) // a ping was just sent
					if s.feed.Epoch() == 0 {
						t.Fatal("the feed was never up")
					}
					release := func() {}
					if heeds {
						release = l.hang(&l.wait)
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
	t.Parallel()
	server := redistest.RunEmbedded(t)
	l, client := lineTo(t, server, false)
	s := subscribed(t, server, &split{Client: server.Client(), elsewhere: client}, redisstore.Options{RedisTimeout: time.Minute})
	eventually(t, func() bool { return s.feed.Epoch() != 0 })
	defer l.hang(&l.wait)()
	began := time.Now()
	l.cut()
	eventually(t, func() bool { return s.feed.Epoch() == 0 })
	if took := time.Since(began); took > 5*time.Second { // two, and some for a busy machine
		t.Errorf("it took %v", took)
	}
}

// A connection with stuck writes counts as lost: it can't send a SUBSCRIBE.
func TestStuckWriteIsALoss(t *testing.T) {
	server := redistest.RunEmbedded(t) // in fake time the client's mutex could not be waited for
	l, client := lineTo(t, server, true)
	s := subscribed(t, server, &split{Client: server.Client(), elsewhere: client}, redisstore.Options{})
	for range 2 {
		eventually(t, func() bool { return s.feed.Epoch() != 0 })
		release := l.hang(&l.stuck)
		t.Cleanup(release)
		w := s.store.Watch("k")
		defer w.Close()
		eventually(t, func() bool { return s.feed.Epoch() == 0 })
		release()
		eventually(t, func() bool { return len(w.C) > 0 })
	}
	release := l.hang(&l.stuck)
	w := s.store.Watch("other")
	defer w.Close()
	time.AfterFunc(3*time.Second, release)
	if err := s.store.Close(); err != nil {
		t.Log(err) // calls are still under way in the client
	}
}

// A process that has just started waits for its subscription, which comes late as its
// machine is busy. Without that each fresh process would fetch for itself.
func TestFreshProcessWaitsForItsSubscription(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	o := server.Options()
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dialTCP(ctx, network, addr)
		return lateSubscriber{c, 600 * time.Millisecond}, err
	}
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	granted(t, opened(t, client, redisstore.Options{}), "k")
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
