package cache_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A slowRelease hook holds back each script of two keys, as a release is.
type slowRelease struct{ by time.Duration }

func (h *slowRelease) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *slowRelease) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && args[2] == 2 {
			time.Sleep(h.by)
		}
		return next(ctx, cmd)
	}
}

func (h *slowRelease) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A process that was no longer watched while it still held a lease would look dead.
func TestCloseReleasesItsLeasesWhileItIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		client := redis.NewClient(server.Options())
		h := &slowRelease{}
		client.AddHook(h)
		store := func(c *redis.Client) *cache.Redis {
			s, err := cache.NewRedis(c, cache.Options{Namespace: "test"})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		leaving, other := store(client), store(server.Client())
		time.Sleep(time.Second) // until the subscriptions are live
		first, err := leaving.Acquire(t.Context(), "k", lasting())
		if err != nil || first.Verdict != cache.Granted {
			t.Fatal(first.Verdict, err)
		}
		h.by = 200 * time.Millisecond // less than RedisTimeout
		closed := make(chan error, 1)
		go func() { closed <- leaving.Close() }()
		synctest.Wait()
		ask := lasting()
		for range 3 {
			a, err := other.Acquire(t.Context(), "k", ask)
			if err != nil || a.Verdict != cache.Held || a.Unwatched {
				t.Fatalf("while its process is closed the lease is %v, unwatched %v, %v", a.Verdict, a.Unwatched, err)
			}
			ask.LastHeld, ask.Suspect = a.Holder, a.Holder
			time.Sleep(60 * time.Millisecond)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		a, err := other.Acquire(t.Context(), "k", ask)
		if err != nil || a.Verdict != cache.Granted || a.Lease.TakenOver || a.Lease.Attempt != 1 {
			t.Errorf("after it was closed: %v, %+v, %v", a.Verdict, a.Lease, err)
		}
		if err := errors.Join(other.Close(), client.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A holdUp hook delays scripts until a channel is closed: before they are sent,
// or before they return. Without a channel they are not delayed.
type holdUp struct{ before, after atomic.Pointer[chan struct{}] }

func hold(p *atomic.Pointer[chan struct{}]) (release chan struct{}) {
	release = make(chan struct{})
	p.Store(&release)
	return release
}

func (h *holdUp) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *holdUp) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if before := h.before.Load(); before != nil && strings.HasPrefix(cmd.Name(), "eval") {
			<-*before
		}
		return next(context.WithoutCancel(ctx), cmd)
	}
}

func (h *holdUp) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if after := h.after.Load(); after != nil {
			<-*after
		}
		return err
	}
}

// A lingering connection is closed a while after its client has closed it, as a
// server may take to notice.
type lingering struct{ net.Conn }

func (c lingering) Close() error {
	time.AfterFunc(200*time.Millisecond, func() { _ = c.Conn.Close() })
	return nil
}

// held is a store in a bubble whose scripts can be held up.
func held(t *testing.T) (*cache.Redis, *holdUp, *redistest.Embedded) {
	t.Helper()
	server := redistest.RunEmbeddedInMemory(t)
	o := server.Options()
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return lingering{conn}, err
	}
	client := redis.NewClient(o)
	h := &holdUp{}
	client.AddHook(h)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		time.Sleep(time.Minute) // what was held up ends
	})
	time.Sleep(time.Second) // until the subscription is live
	return s, h, server
}

// An acquire may be carried out after its store was closed, while its connection
// is not yet known to have ended.
func TestCloseIsNotOvertakenByALateAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h, server := held(t)
		late := hold(&h.before)
		ask := lasting()
		ask.Once = true
		go func() { _, _ = s.Acquire(context.Background(), "k", ask) }()
		synctest.Wait()
		h.before.Store(nil) // Close's own scripts are not held up
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		close(late)
		synctest.Wait()
		if server.Exists("test:{k}:lease") {
			t.Error("the store was closed, and then granted a lease")
		}
		<-closed
	})
}

func TestCloseThatOvertakesGrantsOfManyReleasesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h, server := held(t)
		release := hold(&h.after)
		answered := make(chan []cache.Acquired, 1)
		go func() {
			answered <- s.AcquireMany(context.Background(), []cache.Request{{Key: "a", Ask: lasting()}, {Key: "b", Ask: lasting()}})
		}()
		synctest.Wait()
		if !server.Exists("test:{a}:lease") {
			t.Fatal("the leases were not granted")
		}
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		close(release)
		for i, a := range <-answered {
			if a.Err == nil {
				t.Errorf("request %d is answered %v by a store that is closed", i, a.Answer.Verdict)
			}
		}
		<-closed
		if server.Exists("test:{a}:lease") || server.Exists("test:{b}:lease") {
			t.Error("a lease is left behind")
		}
	})
}

// If the fill is lost the lease is to end, and if it is late nothing may come
// between it and the lease's end.
func TestLeaseIsNotRenewedWhileItIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h, server := held(t)
		ask := lasting()
		ask.TTL = 300 * time.Millisecond
		a, err := s.Acquire(t.Context(), "k", ask)
		if err != nil || a.Verdict != cache.Granted {
			t.Fatal(a.Verdict, err)
		}
		late := hold(&h.before)
		filled := make(chan error, 1)
		go func() {
			_, err := s.Fill(context.Background(), a.Lease, &cache.Entry{Kind: cache.Value, TTL: time.Minute})
			filled <- err
		}()
		synctest.Wait()
		h.before.Store(nil)
		time.Sleep(200 * time.Millisecond) // less than RedisTimeout; it was due after 100 ms
		if left := server.TTL("test:{k}:lease"); left > 100*time.Millisecond {
			t.Errorf("200 ms after it was granted for 300 ms, the lease lasts %v", left)
		}
		close(late)
		if err := errors.Join(<-filled, s.Close()); err != nil {
			t.Error(err)
		}
	})
}
