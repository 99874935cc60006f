package cache_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// between is how long a channel may stay subscribed to that nobody waits on: it
// is given back beside the next ping.
const between = 400 * time.Millisecond

// A listener is a store in a bubble, and a client that sees who is subscribed.
type listener struct {
	*testing.T
	store *cache.Redis
	admin *redis.Client
}

func listening(t *testing.T) *listener {
	t.Helper()
	server := redistest.RunEmbeddedInMemory(t)
	clients := [2]*redis.Client{redis.NewClient(server.Options()), redis.NewClient(server.Options())}
	for _, c := range clients {
		t.Cleanup(func() { _ = c.Close() })
	}
	s, err := cache.NewRedis(clients[0], cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &listener{t, s, clients[1]}
}

// channels counts the wake channels that somebody is subscribed to.
func (l *listener) channels() int {
	l.Helper()
	synctest.Wait()
	names, err := l.admin.PubSubChannels(l.Context(), "test:*:wake").Result()
	if err != nil {
		l.Fatal(err)
	}
	return len(names)
}

// next is the signal that is there for a watch; 0 is none.
func next(w *cache.Watch) cache.Signal {
	select {
	case m := <-w.C:
		return m.Signal
	default:
		return 0
	}
}

func TestChannelIsGivenBackBesideTheNextPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listening(t)
		w := l.store.Watch("k")
		<-w.C
		w.Close()
		if n := l.channels(); n != 1 {
			t.Fatalf("subscribed to %d channels, want to keep 1 for now", n)
		}
		time.Sleep(between)
		if n := l.channels(); n != 0 {
			t.Fatalf("subscribed to %d channels, want 0", n)
		}
		again := l.store.Watch("k")
		defer again.Close()
		synctest.Wait()
		if got := next(again); got != cache.Confirmed {
			t.Errorf("the next watch has %v, want confirmed", got)
		}
	})
}

func TestChannelThatIsStillThereIsConfirmedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listening(t)
		w := l.store.Watch("k")
		<-w.C
		w.Close()
		if err := l.store.Delete(t.Context(), "k"); err != nil { // nobody listens
			t.Fatal(err)
		}
		synctest.Wait()
		again := l.store.Watch("k")
		defer again.Close()
		if got := next(again); got != cache.Confirmed {
			t.Errorf("a watch of a channel that is subscribed to has %v, want confirmed", got)
		}
		time.Sleep(2 * between) // it is wanted
		if n := l.channels(); n != 1 {
			t.Errorf("subscribed to %d channels, want 1", n)
		}
		if got := next(again); got != 0 {
			t.Errorf("it hears %v from before it was there", got)
		}
		if err := l.store.Delete(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := next(again); got != cache.Deleted {
			t.Errorf("it hears %v, want deleted", got)
		}
	})
}

// However many keys are waited for in a short time, few channels stay.
func TestManyChannelsAreGivenBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listening(t)
		const many, spare = 1000, 256
		watches := make([]*cache.Watch, many)
		for i := range watches {
			watches[i] = l.store.Watch(fmt.Sprint("k", i))
		}
		if n := l.channels(); n != many {
			t.Fatalf("subscribed to %d channels, want %d", n, many)
		}
		began := time.Now()
		for _, w := range watches {
			w.Close()
		}
		if n := l.channels(); n >= spare {
			t.Errorf("subscribed to %d channels that nobody watches, want less than %d", n, spare)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("that took until a ping: %v", took)
		}
	})
}

// A oneMaster is a cluster of one master, whose client is replaced when it comes
// back at its old address.
type oneMaster struct {
	*redis.Client
	now  atomic.Pointer[redis.Client]
	late atomic.Int64 // how long the subscriber of the old client lives on
}

func (c *oneMaster) MasterForKey(context.Context, string) (*redis.Client, error) {
	return c.now.Load(), nil
}

func (c *oneMaster) ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	return f(ctx, c.now.Load())
}

func (c *oneMaster) ReloadState(context.Context) { time.Sleep(time.Duration(c.late.Load())) }

func TestFeedIsLiveAgainOnceAMasterIsBackAtItsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		var clients [3]*redis.Client
		for i := range clients {
			clients[i] = redis.NewClient(server.Options())
			t.Cleanup(func() { _ = clients[i].Close() })
		}
		cluster := &oneMaster{Client: clients[0]}
		cluster.now.Store(clients[1])
		s, err := cache.NewRedis(cluster, cache.Options{Namespace: "test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		f := s.Follow(func(cache.Invalidation) {})
		defer f.Close()
		time.Sleep(5 * time.Second)
		if f.Epoch() == 0 {
			t.Fatal("the feed was never live")
		}
		cluster.late.Store(int64(3 * time.Second)) // the new client's is confirmed meanwhile
		cluster.now.Store(clients[2])
		time.Sleep(10 * time.Second)
		if f.Epoch() == 0 {
			t.Error("the feed is still down")
		}
	})
}

// Behind Sentinel a master that was replaced goes on answering: the connection that
// tells a near cache what to forget is made anew, with liveness or without.
func TestFeedFollowsTheCommands(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprint("liveness off: ", off), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old, now := redistest.RunEmbeddedInMemory(t), redistest.RunEmbeddedInMemory(t)
				var replaced atomic.Bool
				o := old.Options()
				o.ConnMaxLifetime = 100 * time.Millisecond // commands leave the old master soon
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if replaced.Load() {
						return now.Options().Dialer(ctx, network, addr)
					}
					return old.Options().Dialer(ctx, network, addr)
				}
				client := redis.NewClient(o)
				t.Cleanup(func() { _ = client.Close() })
				s, err := cache.NewRedis(client, cache.Options{Namespace: "test", DisableLiveness: off})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				var heard atomic.Int64
				f := s.Follow(func(i cache.Invalidation) {
					if i.Key == "k" { // and not what a store tries out when it is opened
						heard.Add(1)
					}
				})
				defer f.Close()
				time.Sleep(time.Second)
				if f.Epoch() == 0 {
					t.Fatal("the feed isn't live")
				}
				replaced.Store(true)
				time.Sleep(3 * time.Second)
				other, err := cache.NewRedis(now.Client(), cache.Options{Namespace: "test"}) // what s changes, its feeds are told by s
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = other.Close() })
				if err := other.Delete(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if f.Epoch() == 0 || heard.Load() != 1 {
					t.Errorf("live: %v, heard %d changes of 1", f.Epoch() != 0, heard.Load())
				}
			})
		})
	}
}
