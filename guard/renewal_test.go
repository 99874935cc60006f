package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

// kept is a policy that keeps values for validation for an hour after their TTL, and never
// serves them stale.
func kept(p *guard.Policy) {
	p.StaleIfError = time.Hour
	p.StaleOn = func(error) bool { return false }
	p.ErrorPause = guard.Off
}

// stillGood is a fetch that finds a stale value still good after setting tags. It
// fetches anew without one.
func stillGood(o *origin, setTags func(*guard.Fill[string])) func(context.Context, *guard.Fill[string]) (string, error) {
	return func(ctx context.Context, f *guard.Fill[string]) (string, error) {
		if f.Stale == nil {
			return o.fetch(ctx)
		}
		setTags(f)
		return "", guard.ErrNotModified
	}
}

func TestRenewalKeepsTheTagsOfTheValue(t *testing.T) {
	for name, setTags := range map[string]func(*guard.Fill[string]){
		"none":      func(f *guard.Fill[string]) { f.Tags = nil },
		"preset":    func(*guard.Fill[string]) {},
		"some":      func(f *guard.Fill[string]) { f.Tags = []string{"b", "b"} },
		"of TagsOf": func(f *guard.Fill[string]) { f.Tags = append(f.Tags, "of k") },
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(2, policy(kept, tagged("a")), guard.TagsOf(func(key, _ string) []string { return []string{"of " + key} }))
				o := &origin{}
				for _, tag := range []string{"a", "b", "of k"} {
					want := loads(w, fleet[0], "k", o.withTags("b")).Value
					for range 2 { // a renewed value is renewed like any other
						time.Sleep(2 * time.Minute)
						if r := loads(w, fleet[1], "k", stillGood(o, setTags)); r.Value != want || !r.Stored {
							w.Errorf("renewed: %+v, want %q", r, want)
						}
					}
					must(w, fleet[1].DeleteTag(ctx, tag))
					if _, err := fleet[0].Peek(ctx, "k"); !errors.Is(err, guard.ErrMiss) {
						w.Errorf("after DeleteTag(%s): %v, want ErrMiss", tag, err)
					}
				}
			})
		})
	}
}

func TestRenewalThatAddsATagFails(t *testing.T) {
	addsB := func(f *guard.Fill[string]) { f.Tags = append(f.Tags, "b") }
	for name, tags := range map[string][]string{"to some": {"a"}, "to none": nil} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				rec := &recorder{}
				fleet := w.fleet(2, policy(kept, func(p *guard.Policy) { p.Observer = rec }))
				o := &origin{}
				loads(w, fleet[0], "k", o.withTags(tags...))
				time.Sleep(2 * time.Minute)
				before, err := fleet[1].Peek(ctx, "k")
				must(w, err)
				_, err = fleet[0].Load(ctx, "k", stillGood(o, addsB))
				for _, part := range []string{`"b"`, "return the value"} {
					if err == nil || !strings.Contains(err.Error(), part) {
						w.Errorf("Load: %v, want an error with %s", err, part)
					}
				}
				if errors.Is(err, guard.ErrNotModified) || rec.count(cache.FetchFailed) != 1 {
					w.Errorf("%v, %d failed fetches: the log would not warn of it", err, rec.count(cache.FetchFailed))
				}
				if after, err := fleet[1].Peek(ctx, "k"); err != nil || after != before {
					w.Errorf("%+v, %v is stored, want the value from before: %+v", after, err, before)
				}
				// To return the value changes its tags.
				start := time.Now()
				loads(w, fleet[1], "k", o.withTags("b"))
				if took := time.Since(start); took > 10*time.Millisecond {
					w.Errorf("the next fetch began after %v", took)
				}
				must(w, fleet[0].DeleteTag(ctx, "b"))
				if _, err := fleet[1].Peek(ctx, "k"); !errors.Is(err, guard.ErrMiss) {
					w.Errorf("after DeleteTag: %v, want ErrMiss", err)
				}
			})
		})
	}
}

// Without a lease nothing is stored, and the rule is the same.
func TestUnguardedRenewalThatAddsATagFails(t *testing.T) {
	inMemory(t, func(w *world) {
		away := atomic.Bool{}
		s := &raced{read: func() {}, acquire: func() error {
			if away.Load() {
				return cache.ErrUnavailable
			}
			return nil
		}}
		g := w.guard(s.of(w.open()), policy(kept))
		o := &origin{}
		loads(w, g, "k", o.withTags("a"))
		time.Sleep(2 * time.Minute)
		away.Store(true)
		r, err := g.Load(ctx, "k", stillGood(o, func(f *guard.Fill[string]) { f.Tags = append(f.Tags, "b") }))
		if err == nil || !strings.Contains(err.Error(), `"b"`) {
			w.Errorf("%+v, %v, want an error that names the tag", r, err)
		}
	})
}

// A deploy has added a tag to the policy: a renewal would keep the value without it.
func TestValueLackingAPolicyTagIsFetchedInFull(t *testing.T) {
	for name, tags := range map[string][]string{"no tags": nil, "another tag": {"a"}} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				before := w.fleet(1, policy(kept, tagged(tags...)))[0]
				after := w.fleet(1, policy(kept, tagged(append(tags, "new")...)))[0]
				o := &origin{}
				get(w, before, "k", o.fetch)
				time.Sleep(2 * time.Minute)
				if r := loads(w, after, "k", stillGood(o, func(*guard.Fill[string]) {})); r.Value != "v2" {
					w.Errorf("%+v, want a full fetch", r)
				}
				must(w, after.DeleteTag(ctx, "new"))
				if _, err := before.Peek(ctx, "k"); !errors.Is(err, guard.ErrMiss) {
					w.Errorf("after DeleteTag: %v, want ErrMiss", err)
				}
			})
		})
	}
}

// Get and GetMany give their fetches no stale value, and renew it all the same.
func TestUntoldRenewalThatLacksAPolicyTagFails(t *testing.T) {
	inWorlds(t, func(w *world) {
		before := w.fleet(1, policy(kept))[0]
		after := w.fleet(1, policy(kept, tagged("new")))[0]
		keys := []string{"k1", "k2"}
		o := &origin{}
		for _, key := range keys {
			get(w, before, key, o.fetch)
		}
		time.Sleep(2 * time.Minute)
		named := func(err error) {
			w.Helper()
			if !errors.Is(err, guard.ErrNotModified) || !strings.Contains(err.Error(), `"new"`) {
				w.Errorf("%v, want an error that names the tag", err)
			}
		}
		_, err := after.Get(ctx, "k1", func(context.Context) (string, error) { return "", guard.ErrNotModified })
		named(err)
		_, err = after.GetMany(ctx, keys, func(context.Context, []string) (map[string]string, error) { return nil, guard.ErrNotModified })
		var failed *guard.BatchError
		if !errors.As(err, &failed) {
			w.Fatalf("GetMany: %v", err)
		}
		for _, key := range keys {
			named(failed.Errs[key])
			if _, err := before.Peek(ctx, key); err != nil {
				w.Errorf("%s is no longer stored: %v", key, err)
			}
		}
	})
}

// A deleteCounter counts the changes of a store.
type deleteCounter struct {
	*tap.Store
	n atomic.Int32
}

func (s *deleteCounter) Unwrap() store.Store { return s }

func (s *deleteCounter) Change(ctx context.Context, changes []store.Change) []error {
	s.n.Add(1)
	return s.Store.Change(ctx, changes)
}

// P2: the lease of the renewal is gone, and so is its right to change the key.
func TestRefusedRenewalDeletesNothing(t *testing.T) {
	load := func(g *guard.Guard[string], meanwhile func(), tags ...string) {
		_, _ = g.Load(ctx, "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
			meanwhile()
			f.Tags = append(f.Tags, tags...)
			return "", guard.ErrNotModified
		})
	}
	for name, c := range map[string]struct {
		renew   func(g *guard.Guard[string], meanwhile func())
		deleted string // tag
		left    string // value
	}{
		"Load":                 {func(g *guard.Guard[string], meanwhile func()) { load(g, meanwhile) }, "a", ""},
		"Load that adds a tag": {func(g *guard.Guard[string], meanwhile func()) { load(g, meanwhile, "more") }, "more", "v1"},
		"GetMany": {func(g *guard.Guard[string], meanwhile func()) {
			_, _ = g.GetMany(ctx, []string{"k"}, func(context.Context, []string) (map[string]string, error) {
				meanwhile()
				return nil, guard.ErrNotModified
			})
		}, "a", ""},
	} {
		for _, newer := range []string{"", "newer"} {
			t.Run(name+" "+newer, func(t *testing.T) {
				inWorlds(t, func(w *world) {
					s := &deleteCounter{Store: tap.New(w.open())}
					g, other := w.guard(s, policy(kept, tagged("a"))), w.fleet(1, policy(kept, tagged("a")))[0]
					get(w, g, "k", (&origin{}).fetch)
					time.Sleep(2 * time.Minute)
					want := c.left
					c.renew(g, func() {
						must(w, other.DeleteTag(ctx, c.deleted))
						if newer != "" {
							must(w, other.Set(ctx, "k", newer))
							want = newer
						}
					})
					if r, err := other.Peek(ctx, "k"); r.Value != want || err != nil && !errors.Is(err, guard.ErrMiss) {
						w.Errorf("%q, %v is stored, want %q", r.Value, err, want)
					}
					if n := s.n.Load(); n != 0 {
						w.Errorf("the refused renewal sent %d Deletes", n)
					}
				})
			})
		}
	}
}

// heldTags holds up the script that records a change of a tag, after the change has drawn its
// number from the clock.
type heldTags struct{ reached, open chan struct{} }

func (h heldTags) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h heldTags) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.pass([]redis.Cmder{cmd})
		return next(ctx, cmd)
	}
}

func (h heldTags) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.pass(cmds)
		return next(ctx, cmds)
	}
}

func (h heldTags) pass(cmds []redis.Cmder) {
	for _, cmd := range cmds {
		if args := cmd.Args(); len(args) > 3 && strings.HasSuffix(fmt.Sprint(args[3]), ":tag") {
			close(h.reached)
			<-h.open
		}
	}
}

// The deletion of a tag draws its number, the value is read for validation, and only then the
// deletion is recorded. The number of the validating fetch is above that of the deletion.
func TestRenewalDuringADeletionOfItsTagIsRefused(t *testing.T) {
	p := policy(kept, tagged("t"))
	faulty(t, p, cache.Options{RedisTimeout: 20 * time.Second}, func(w *world, _ *network, client *redis.Client, deleting *guard.Guard[string]) {
		s, err := cache.NewRedis(w.server.Client(), cache.Options{Namespace: "test"})
		must(w, err)
		g, err := guard.New[string](s, "g", p)
		must(w, err)
		defer func() { must(w, errors.Join(g.Close(), s.Close())) }()
		time.Sleep(time.Second)
		must(w, g.Set(ctx, "k", "old"))
		time.Sleep(p.TTL + time.Second)
		h := heldTags{make(chan struct{}), make(chan struct{})}
		client.AddHook(h)
		deleted := make(chan error)
		go func() { deleted <- deleting.DeleteTag(ctx, "t") }()
		<-h.reached
		_, _ = g.Load(ctx, "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
			if f.Stale == nil {
				w.Error("no value to validate")
			}
			close(h.open)
			must(w, <-deleted)
			return "", guard.ErrNotModified
		})
		if r, err := g.Load(ctx, "k", stillGood(&origin{}, func(*guard.Fill[string]) {})); err != nil || r.Value != "v1" {
			w.Errorf("after the deletion: %+v, %v", r, err)
		}
	})
}
