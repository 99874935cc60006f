package guard_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A deleteHook holds back the first acquire until a delete has been carried out,
// and that delete's answer until then is run.
type deleteHook struct {
	armed                  atomic.Bool
	held, deleted, granted chan struct{}
	then                   func()
}

func (h *deleteHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *deleteHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *deleteHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" || !h.armed.Load() {
			return next(ctx, cmd)
		}
		switch cmd.Args()[2] { // the number of keys
		case 6: // acquire
			close(h.held)
			<-h.deleted
			err := next(ctx, cmd)
			close(h.granted)
			return err
		case 2: // delete
			h.armed.Store(false)
			err := next(ctx, cmd)
			close(h.deleted)
			<-h.granted
			h.then()
			return err
		}
		return next(ctx, cmd)
	}
}

// The lease that a refresh is granted after a Delete in the same process was
// carried out, but before its answer came, is not one that the Delete ended.
func TestDeleteEndsNoLaterLease(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	h := &deleteHook{held: make(chan struct{}), deleted: make(chan struct{}), granted: make(chan struct{})}
	open := func(hooked bool) *guard.Guard[string] {
		client := server.Client()
		if hooked {
			client.AddHook(h)
		}
		store, err := cache.NewRedis(client, cache.Options{Namespace: "ns", RedisTimeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		g, err := guard.New[string](store, "g", guard.Policy{TTL: 20 * time.Millisecond, Stale: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	here, there := open(true), open(false)
	ctx := t.Context()
	fetch := func(context.Context) (string, error) {
		time.Sleep(200 * time.Millisecond)
		return "fetched", nil
	}
	for _, g := range []*guard.Guard[string]{here, there} { // scripts are loaded
		if _, err := g.Get(ctx, "other", fetch); err != nil {
			t.Fatal(err)
		}
		if err := g.Delete(ctx, "other"); err != nil {
			t.Fatal(err)
		}
	}
	if err := here.Set(ctx, "key", "set"); err != nil {
		t.Fatal(err)
	}
	until(t, "the value is stale", func() bool { r, err := here.Peek(ctx, "key"); return err == nil && r.Source == guard.Stale })
	waited, held := make(chan error, 1), there.Stats().Leases.Held
	h.then = func() {
		go func() {
			_, err := there.Get(ctx, "key", fetch)
			waited <- err
		}()
		for end := time.Now().Add(4 * time.Second); there.Stats().Leases.Held == held; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Error("the other process does not wait")
				return
			}
		}
	}
	h.armed.Store(true)
	if v, err := here.Get(ctx, "key", fetch); v != "set" || err != nil {
		t.Fatalf("%q, %v; want the stale value, and a refresh", v, err)
	}
	<-h.held // the refresh's acquire
	if err := here.Delete(ctx, "key"); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("a caller in another process got %v", err)
	}
}
