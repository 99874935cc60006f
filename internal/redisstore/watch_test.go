package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// pingEvery is for how long a channel that nothing watches may stay subscribed to: it is
// given back beside the next ping.
const pingEvery = 400 * time.Millisecond

// A listener is a store in a bubble, and a client that sees the subscriptions.
type listener struct {
	*testing.T
	store *redisstore.Store
	admin *redis.Client
}

func listening(t *testing.T, test func(l *listener)) {
	t.Helper()
	bubble(t, redisstore.Options{}, nil, func(t *testing.T, s *redisstore.Store, server *redistest.Embedded) {
		test(&listener{t, s, server.Client()})
	})
}

// channels counts the wake channels that are subscribed to.
func (l *listener) channels() int {
	l.Helper()
	synctest.Wait()
	names, err := l.admin.PubSubChannels(l.Context(), "test:*:wake").Result()
	if err != nil {
		l.Fatal(err)
	}
	return len(names)
}

// next is the signal that a watch has; 0 is none.
func next(w *store.Watch) store.Signal {
	synctest.Wait()
	select {
	case m := <-w.C:
		return m.Signal
	default:
		return 0
	}
}

func TestChannelIsGivenBackBesideTheNextPing(t *testing.T) {
	listening(t, func(l *listener) {
		w := l.store.Watch("k")
		<-w.C
		w.Close()
		if n := l.channels(); n != 1 {
			l.Fatalf("subscribed to %d channels, want to keep 1 for now", n)
		}
		time.Sleep(pingEvery)
		if n := l.channels(); n != 0 {
			l.Fatalf("subscribed to %d channels, want 0", n)
		}
		again := l.store.Watch("k")
		defer again.Close()
		if got := next(again); got != store.Confirmed {
			l.Errorf("the next watch has %v, want confirmed", got)
		}
	})
}

func TestKeptChannelIsConfirmedAtOnce(t *testing.T) {
	listening(t, func(l *listener) {
		w := l.store.Watch("k")
		<-w.C
		w.Close()
		if err := remove(l.Context(), l.store, "k"); err != nil { // nothing listens
			l.Fatal(err)
		}
		synctest.Wait()
		again := l.store.Watch("k")
		defer again.Close()
		if got := next(again); got != store.Confirmed {
			l.Errorf("a watch of a channel that is subscribed to has %v, want confirmed", got)
		}
		time.Sleep(2 * pingEvery) // it is wanted
		if n := l.channels(); n != 1 {
			l.Errorf("subscribed to %d channels, want 1", n)
		}
		if got := next(again); got != 0 {
			l.Errorf("it hears %v from before it began", got)
		}
		if err := remove(l.Context(), l.store, "k"); err != nil {
			l.Fatal(err)
		}
		if got := next(again); got != store.Deleted {
			l.Errorf("it hears %v, want deleted", got)
		}
	})
}

// However many keys are waited for in a short time, few channels stay.
func TestManyChannelsAreGivenBackAtOnce(t *testing.T) {
	listening(t, func(l *listener) {
		const many, spare = 1000, 256
		watches := make([]*store.Watch, many)
		for i := range watches {
			watches[i] = l.store.Watch(fmt.Sprint("k", i))
		}
		if n := l.channels(); n != many {
			l.Fatalf("subscribed to %d channels, want %d", n, many)
		}
		began := time.Now()
		for _, w := range watches {
			w.Close()
		}
		if n := l.channels(); n >= spare {
			l.Errorf("subscribed to %d channels that nothing watches, want less than %d", n, spare)
		}
		if took := time.Since(began); took != 0 {
			l.Errorf("that took until a ping: %v", took)
		}
	})
}

// A oneMaster is a cluster of one master. The master's client is replaced when the master
// comes back at its old address.
type oneMaster struct {
	*redis.Client
	now  atomic.Pointer[redis.Client]
	late atomic.Int64 // how long the subscription on the old client lives on
}

func (c *oneMaster) MasterForKey(context.Context, string) (*redis.Client, error) {
	return c.now.Load(), nil
}

func (c *oneMaster) ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	return f(ctx, c.now.Load())
}

func (c *oneMaster) ReloadState(context.Context) { time.Sleep(time.Duration(c.late.Load())) }

func TestFeedIsUpAgainOnceItsMasterReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		cluster := &oneMaster{Client: server.Client()}
		cluster.now.Store(server.Client())
		s := opened(t, cluster, redisstore.Options{})
		// The first look for the masters may have failed.
		eventually(t, func() bool { _, err := read(t.Context(), s, "k"); return err == nil })
		f := s.Follow(func(store.Invalidation) {})
		defer f.Close()
		w := s.Watch("k")
		defer w.Close()
		time.Sleep(5 * time.Second)
		if got := next(w); f.Epoch() == 0 || got != store.Confirmed {
			t.Fatalf("feed up=%v, the watch has %v", f.Epoch() != 0, got)
		}
		cluster.late.Store(int64(3 * time.Second)) // the new client's is confirmed meanwhile
		cluster.now.Store(server.Client())
		time.Sleep(10 * time.Second)
		if got := next(w); f.Epoch() == 0 || got != store.Confirmed {
			t.Errorf("feed up=%v, the watch has %v", f.Epoch() != 0, got)
		}
	})
}

// Behind Sentinel a master that was replaced goes on answering. The connection on which
// near caches hear of changes is made anew, with liveness or without.
func TestFeedFollowsTheCommands(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprintf("liveness off=%v", off), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old, now := redistest.RunEmbeddedInMemory(t), redistest.RunEmbeddedInMemory(t)
				f, client := failingOver(t, old, now)
				s := opened(t, client, redisstore.Options{DisableLiveness: off})
				var heard atomic.Int64
				feed := s.Follow(func(i store.Invalidation) {
					if i.Key == "k" { // and not that of a probe
						heard.Add(1)
					}
				})
				defer feed.Close()
				time.Sleep(time.Second)
				if feed.Epoch() == 0 {
					t.Fatal("the feed is not up")
				}
				f.replaced.Store(true)
				time.Sleep(5 * time.Second)
				other := opened(t, now.Client(), redisstore.Options{}) // s would tell its feeds by itself
				if err := remove(t.Context(), other, "k"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if feed.Epoch() == 0 || heard.Load() != 1 {
					t.Errorf("up=%v, heard %d changes of 1", feed.Epoch() != 0, heard.Load())
				}
			})
		})
	}
}

func TestCloseBesideAReplacedMasterLeavesNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		cluster := &oneMaster{Client: server.Client()}
		cluster.now.Store(server.Client())
		s := opened(t, cluster, redisstore.Options{})
		time.Sleep(5 * time.Second) // until the master is subscribed to
		cluster.late.Store(int64(3 * time.Second))
		cluster.now.Store(server.Client())
		time.Sleep(2 * time.Second) // until that is noticed
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// onALine opens a store. Its subscription goes by a line, and its commands by another
// connection.
func onALine(t *testing.T, opts redisstore.Options, test func(l *line, s *subscriber, server *redistest.Embedded)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		l, client := lineTo(t, server, true)
		s := subscribed(t, server, &split{Client: server.Client(), elsewhere: client}, opts)
		time.Sleep(time.Second)
		s.isOn()
		test(l, s, server)
	})
}

// Each way in which the connection of the subscription fails is noticed within two seconds,
// and the next one is made as soon as that is possible.
func TestBrokenSubscriptionIsReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(l *line, server *redistest.Embedded) (mends func())
		lost   time.Duration // until it is noticed
	}{
		"closed": {func(l *line, _ *redistest.Embedded) func() {
			release := l.hang(&l.wait)
			l.cut()
			return release
		}, 0},
		"closed, and every dial fails": {func(l *line, _ *redistest.Embedded) func() {
			l.away.Store(true)
			l.cut()
			return func() { l.away.Store(false) }
		}, 0},
		"silent": {func(l *line, _ *redistest.Embedded) func() {
			l.mute.Store(true)
			l.away.Store(true) // in fake time no dial may get stuck: the client holds a mutex
			return func() { l.mute.Store(false); l.away.Store(false) }
		}, 2 * time.Second},
		"refused": {func(l *line, server *redistest.Embedded) func() {
			on := answering(server, "SUBSCRIBE", "LOADING Redis is loading the dataset in memory")
			l.cut()
			return func() { on.Store(false) }
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onALine(t, redisstore.Options{}, func(l *line, s *subscriber, server *redistest.Embedded) {
				w := s.store.Watch("k")
				s.Cleanup(w.Close)
				if got := next(w); got != store.Confirmed {
					s.Fatalf("the watch has %v, want confirmed", got)
				}
				mends := c.breaks(l, server)
				time.Sleep(c.lost)
				synctest.Wait()
				if s.times(store.SubscriptionLost) != 1 || s.feed.Epoch() != 0 {
					s.Errorf("%v later: the loss was reported %d times, near caches in use=%v", c.lost, s.times(store.SubscriptionLost), s.feed.Epoch() != 0)
				}
				time.Sleep(10 * time.Second)
				if got := next(w); got != 0 {
					s.Errorf("while it is broken the watch has %v", got)
				}
				mends()
				time.Sleep(2 * time.Second)
				if got := next(w); got != store.Confirmed {
					s.Errorf("once it is mended the watch has %v, want confirmed", got)
				}
				s.isOn()
				if err := remove(s.Context(), s.store, "k"); err != nil {
					s.Error(err)
				}
				if got := next(w); got != store.Deleted {
					s.Errorf("the watch has %v, want deleted", got)
				}
			})
		})
	}
}

// The next dial follows soon after one that is stuck.
func TestStuckDialIsGivenUp(t *testing.T) {
	onALine(t, redisstore.Options{RedisTimeout: 5 * time.Second}, func(l *line, s *subscriber, _ *redistest.Embedded) {
		release := l.hang(&l.wait)
		l.cut()
		time.Sleep(100 * time.Millisecond) // it is under way
		l.mu.Lock()
		l.wait = nil // those that come now succeed
		l.mu.Unlock()
		s.isGranted(1200 * time.Millisecond)
		release()
	})
}

// When a node is back its breaker closes. By then the node sees the subscription, or each
// caller would be granted nothing and fetch for itself.
func TestBreakerClosesOnceTheSubscriptionIsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		l, client := lineTo(t, server, true)
		commands, h := server.Client(), &wall{}
		commands.AddHook(h.hook())
		s := subscribed(t, server, &split{Client: commands, elsewhere: client}, redisstore.Options{})
		time.Sleep(time.Second)
		for range 5 {
			h.up.Store(true)
			l.away.Store(true)
			l.cut()
			for !redisstore.BreakerOpen(s.store) {
				_, _ = read(t.Context(), s.store, "k")
			}
			time.Sleep(10*time.Second + 100*time.Millisecond)
			l.away.Store(false)
			h.up.Store(false)
			for redisstore.BreakerOpen(s.store) {
				time.Sleep(time.Millisecond)
			}
			s.isGranted(0)
		}
	})
}

// Close leaves the liveness channel in an orderly way, even if the connection is of no use.
func TestCloseEndsTheSubscription(t *testing.T) {
	for name, breaks := range map[string]func(l *line) (mends func()){
		"live":    func(*line) func() { return func() {} },
		"silent":  func(l *line) func() { l.mute.Store(true); return func() { l.mute.Store(false); l.cut() } },
		"dialing": func(l *line) func() { release := l.hang(&l.wait); l.cut(); return release },
	} {
		t.Run(name, func(t *testing.T) {
			onALine(t, redisstore.Options{}, func(l *line, s *subscriber, server *redistest.Embedded) {
				mends := breaks(l)
				time.Sleep(100 * time.Millisecond)
				began := time.Now()
				err := s.store.Close()
				if took := time.Since(began); took > 2*time.Second {
					s.Errorf("it took %v", took)
				}
				if name == "live" && err != nil {
					s.Error(err)
				}
				mends()
				synctest.Wait()
				if n, err := server.Client().PubSubChannels(s.Context(), "test:*").Result(); err != nil || len(n) > 0 {
					s.Errorf("still subscribed to %v, %v", n, err)
				}
			})
		})
	}
}

// A change that is published after a watch was confirmed reaches that watch, whatever other
// watches of the key come and go.
func TestNoMessageIsLostAfterConfirmed(t *testing.T) {
	listening(t, func(l *listener) {
		w := l.store.Watch("k")
		defer w.Close()
		if got := next(w); got != store.Confirmed {
			l.Fatalf("%v, want confirmed", got)
		}
		for i := range 300 {
			others := []*store.Watch{l.store.Watch("k"), l.store.Watch(fmt.Sprint("other", i))}
			if err := remove(l.Context(), l.store, "k"); err != nil {
				l.Fatal(err)
			}
			for _, o := range others {
				o.Close()
			}
			time.Sleep(time.Duration(i%3) * pingEvery / 2)
			heard := 0
			for got := next(w); got != 0; got = next(w) {
				if got == store.Deleted {
					heard++
				}
			}
			if heard != 1 {
				l.Fatalf("round %d: heard %d deletions of 1", i, heard)
			}
		}
	})
}

// A key's slot moves to another master, and its watch with it.
func TestWatchFollowsItsSlot(t *testing.T) {
	t.Parallel()
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	ctx := t.Context()
	s, other := opened(t, cluster.Client(), redisstore.Options{RedisTimeout: 5 * time.Second}), opened(t, cluster.Client(), redisstore.Options{RedisTimeout: 5 * time.Second})
	slot, err := cluster.Slot(ctx, "test:{k}")
	if err != nil {
		t.Fatal(err)
	}
	w := s.Watch("k")
	defer w.Close()
	hears := func(signal store.Signal) {
		t.Helper()
		for late := time.After(20 * time.Second); ; {
			select {
			case m := <-w.C:
				if m.Signal == signal {
					return
				}
			case <-late:
				t.Fatalf("the watch does not hear %v", signal)
			}
		}
	}
	hears(store.Confirmed)
	for range 3 {
		at := masterOf(t, cluster, "test:{k}")
		if err := cluster.MoveSlot(ctx, slot, at, (at+1)%3); err != nil {
			t.Fatal(err)
		}
		hears(store.Confirmed)
		if err := remove(ctx, other, "k"); err != nil {
			t.Fatal(err)
		}
		hears(store.Deleted)
	}
}

// Goroutines and memory are bounded while nothing is answered.
func TestWatchesInABlackHoleEnd(t *testing.T) {
	onALine(t, redisstore.Options{}, func(l *line, s *subscriber, server *redistest.Embedded) {
		l.mute.Store(true)
		l.away.Store(true)
		for i := range 10_000 {
			s.store.Watch(fmt.Sprint("k", i)).Close()
		}
		time.Sleep(time.Minute)
		l.mute.Store(false)
		l.away.Store(false)
		time.Sleep(time.Minute)
		if n, err := server.Client().PubSubChannels(s.Context(), "test:*:wake").Result(); err != nil || len(n) > 0 {
			s.Errorf("subscribed to %d channels, %v", len(n), err)
		}
		s.isOn()
		if _, err := read(s.Context(), s.store, "k"); err != nil && !errors.Is(err, store.ErrUnavailable) {
			s.Error(err)
		}
	})
}

// While a slot moves, or has no node, its channels are asked for at a bounded rate.
func TestChannelOfAMovedSlotIsSeldomAskedFor(t *testing.T) {
	bubble(t, redisstore.Options{}, nil, func(t *testing.T, s *redisstore.Store, e *redistest.Embedded) {
		var asked atomic.Int64
		e.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			if cmd != "SUBSCRIBE" || !strings.HasSuffix(args[0], ":wake") || asked.Add(1) > 100 {
				return false
			}
			c.WriteError("MOVED 1 127.0.0.1:1")
			return true
		})
		defer s.Watch("k").Close()
		time.Sleep(time.Second)
		if n := asked.Load(); n > 25 {
			t.Errorf("asked for %d times in a second", n)
		}
	})
}
