package guard_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// invalidations are the changes that a guard keeps if Redis does not acknowledge them.
var invalidations = map[string]func(ctx context.Context, g *guard.Guard[string]) error{
	"Delete":     func(ctx context.Context, g *guard.Guard[string]) error { return g.Delete(ctx, "k") },
	"DeleteMany": func(ctx context.Context, g *guard.Guard[string]) error { return g.DeleteMany(ctx, []string{"k"}) },
	"Expire":     func(ctx context.Context, g *guard.Guard[string]) error { return g.Expire(ctx, "k") },
	"Set":        func(ctx context.Context, g *guard.Guard[string]) error { return g.Set(ctx, "k", "set") },
	"SetMany": func(ctx context.Context, g *guard.Guard[string]) error {
		return g.SetMany(ctx, map[string]string{"k": "set"})
	},
	"DeleteTag": func(ctx context.Context, g *guard.Guard[string]) error { return g.DeleteTag(ctx, "t") },
	"ExpireTag": func(ctx context.Context, g *guard.Guard[string]) error { return g.ExpireTag(ctx, "t") },
}

// queueing opens a guard behind a network, and another one that is not.
func queueing(t *testing.T, p guard.Policy, test func(w *world, n *network, g, other *guard.Guard[string])) {
	faulty(t, p, cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		s, err := cache.NewRedis(w.server.Client(), cache.Options{Namespace: "test"})
		must(w, err)
		other, err := guard.New[string](s, "g", p)
		must(w, err)
		time.Sleep(time.Second)
		defer func() { must(w, errors.Join(other.Close(), s.Close())) }()
		test(w, n, g, other)
	})
}

func carryingT(p *guard.Policy) { p.Tags = []string{"t"} }

func TestUnacknowledgedInvalidationIsCarriedOutLater(t *testing.T) {
	for name, change := range invalidations {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{}
			p := policy(carryingT, func(p *guard.Policy) { p.Observer = rec })
			queueing(t, p, func(w *world, n *network, g, other *guard.Guard[string]) {
				must(w, other.Set(ctx, "k", "old"))
				n.cut()
				err := change(ctx, g)
				if !errors.Is(err, guard.ErrQueued) || !errors.Is(err, guard.ErrUnavailable) {
					w.Fatalf("the error is %v", err)
				}
				if s := g.Stats(); s.Queued != 1 {
					w.Errorf("%d changes are queued", s.Queued)
				}
				time.Sleep(5 * time.Second)
				n.refuses.Store(false)
				time.Sleep(3 * time.Second)
				if s := g.Stats(); s.Queued != 0 || rec.count(cache.QueueCarriedOut) != 1 {
					w.Errorf("%d changes are queued, carried out %d times", s.Queued, rec.count(cache.QueueCarriedOut))
				}
				if v := get(w, other, "k", (&origin{}).fetch); v != "v1" {
					w.Errorf("the other process is served %q", v)
				}
			})
		})
	}
}

// Before the queue is carried out, this process serves no stored value of the key, though
// Redis answers.
func TestQueuedInvalidationHidesTheStoredValue(t *testing.T) {
	for name, change := range invalidations {
		t.Run(name, func(t *testing.T) {
			p := policy(carryingT, func(p *guard.Policy) { p.StaleIfError = time.Hour })
			queueing(t, p, func(w *world, n *network, g, other *guard.Guard[string]) {
				must(w, other.Set(ctx, "k", "old"))
				ended, cancel := context.WithCancel(ctx)
				n.blackHole.Store(true)
				time.AfterFunc(10*time.Millisecond, cancel)
				if err := change(ended, g); !errors.Is(err, guard.ErrQueued) {
					w.Fatalf("the error is %v", err)
				}
				n.blackHole.Store(false) // before the breaker opens: a read is answered
				o := &origin{}
				for range 3 {
					if v := get(w, g, "k", o.fetch); v == "old" {
						w.Error("Get was served the value that was to go")
					}
					if vs, err := g.GetMany(ctx, []string{"k"}, (&manyOrigin{}).fetch); err != nil || vs["k"] == "old" {
						w.Errorf("GetMany was served %v, %v", vs, err)
					}
					if r, _ := g.Peek(ctx, "k"); r.Value == "old" {
						w.Error("Peek was served the value that was to go")
					}
				}
			})
		})
	}
}

// A newer change that Redis has acknowledged makes the queued one void.
func TestRefusedInvalidationStaysQueued(t *testing.T) {
	for name, change := range invalidations {
		t.Run(name, func(t *testing.T) {
			queueing(t, policy(carryingT), func(w *world, n *network, g, other *guard.Guard[string]) {
				must(w, other.Set(ctx, "k", "old"))
				n.cut()
				if err := change(ctx, g); !errors.Is(err, guard.ErrQueued) {
					w.Fatalf("the error is %v", err)
				}
				w.server.SetError("NOPERM for the test")
				n.refuses.Store(false)
				time.Sleep(5 * time.Second)
				if s := g.Stats(); s.Queued != 1 {
					w.Errorf("%d changes are queued after Redis refused", s.Queued)
				}
				w.server.SetError("")
				time.Sleep(5 * time.Second)
				if s := g.Stats(); s.Queued != 0 {
					w.Errorf("%d changes are queued", s.Queued)
				}
				if v := get(w, other, "k", (&origin{}).fetch); v != "v1" {
					w.Errorf("%q is stored", v)
				}
			})
		})
	}
}

func TestAcknowledgedChangeReplacesTheQueuedOne(t *testing.T) {
	queueing(t, policy(), func(w *world, n *network, g, other *guard.Guard[string]) {
		ended, cancel := context.WithCancel(ctx)
		n.blackHole.Store(true)
		time.AfterFunc(10*time.Millisecond, cancel)
		if err := g.Delete(ended, "k"); !errors.Is(err, guard.ErrQueued) {
			w.Fatalf("the error is %v", err)
		}
		n.blackHole.Store(false)
		for g.Set(ctx, "k", "new") != nil {
			time.Sleep(time.Millisecond)
		}
		if s := g.Stats(); s.Queued != 0 {
			w.Errorf("%d changes are queued", s.Queued)
		}
		time.Sleep(5 * time.Second)
		if v := get(w, other, "k", never); v != "new" {
			w.Errorf("%q is stored", v)
		}
	})
}

func TestQueueKeepsWithinItsBound(t *testing.T) {
	p := policy(func(p *guard.Policy) { p.MaxQueued = 2 })
	queueing(t, p, func(w *world, n *network, g, _ *guard.Guard[string]) {
		n.cut()
		for i := range 4 {
			key := fmt.Sprint("k", i%3)
			if err := g.Delete(ctx, key); errors.Is(err, guard.ErrQueued) != (i != 2) {
				w.Errorf("the %d. error, of %s, is %v", i, key, err)
			}
		}
	})
	off := policy(func(p *guard.Policy) { p.MaxQueued = guard.Off })
	queueing(t, off, func(w *world, n *network, g, _ *guard.Guard[string]) {
		n.cut()
		if err := g.Delete(ctx, "k"); errors.Is(err, guard.ErrQueued) || !errors.Is(err, guard.ErrUnavailable) {
			w.Errorf("the error is %v", err)
		}
	})
}

func TestCloseReportsLostInvalidations(t *testing.T) {
	queueing(t, policy(), func(w *world, n *network, g, _ *guard.Guard[string]) {
		n.cut()
		_ = g.Delete(ctx, "k")
		if err := g.Close(); !errors.Is(err, cache.ErrUnavailable) {
			w.Errorf("Close returned %v", err)
		}
		if err := g.Close(); err != nil {
			w.Errorf("the second Close returned %v", err)
		}
	})
}

func TestCloseCarriesOutQueuedInvalidations(t *testing.T) {
	queueing(t, policy(), func(w *world, n *network, g, other *guard.Guard[string]) {
		must(w, other.Set(ctx, "k", "old"))
		ended, cancel := context.WithCancel(ctx)
		n.blackHole.Store(true)
		time.AfterFunc(10*time.Millisecond, cancel)
		if err := g.Delete(ended, "k"); !errors.Is(err, guard.ErrQueued) {
			w.Fatalf("the error is %v", err)
		}
		n.blackHole.Store(false)
		must(w, g.Close())
		if v := get(w, other, "k", (&origin{}).fetch); v != "v1" {
			w.Errorf("%q is stored", v)
		}
	})
}
