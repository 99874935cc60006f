package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

// waiting begins a call of Begin that is to wait, and returns the values that it gets.
func waiting(w *world, g *guard.Guard[string]) <-chan string {
	got := make(chan string, 1)
	go func() {
		r, turn, err := g.Begin(context.Background(), "k", nil)
		switch {
		case err != nil:
			got <- "error: " + err.Error()
		case turn != nil:
			turn.Release()
			got <- "a turn"
		case r.Source == guard.Waited && !r.Stored:
			got <- "preview " + r.Value
		default:
			got <- r.Value
		}
	}()
	synctest.Wait()
	return got
}

// stillWaits fails the test if the call has got a value.
func stillWaits(w *world, who string, got <-chan string) {
	w.Helper()
	select {
	case v := <-got:
		w.Errorf("%s got %q, want it to wait", who, v)
	default:
	}
}

func gets(w *world, who string, got <-chan string, want string) {
	w.Helper()
	if v := <-got; v != want {
		w.Errorf("%s got %q, want %q", who, v, want)
	}
}

func TestPreviewReachesWaitersOfItsProcess(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		turn := begin(w, fleet[0], "k")
		before, elsewhere := waiting(w, fleet[0]), waiting(w, fleet[1])
		turn.Preview("half")
		gets(w, "a waiter", before, "preview half")
		for range 3 {
			gets(w, "a late waiter", waiting(w, fleet[0]), "preview half")
		}
		turn.Preview("more")
		gets(w, "a waiter after another preview", waiting(w, fleet[0]), "preview half")
		stillWaits(w, "another process", elsewhere)
		if !turn.Store("whole") {
			w.Error("the value was not stored after its preview")
		}
		gets(w, "another process", elsewhere, "whole")
		gets(w, "a caller after the end", waiting(w, fleet[0]), "whole")
	})
}

func TestPrivateValueHasNoPreview(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		turn := begin(w, g, "k")
		waiter := waiting(w, g)
		turn.Fill.Private = true
		turn.Preview("private")
		stillWaits(w, "a waiter", waiter)
		turn.Fill.Private = false
		turn.Preview("shared")
		gets(w, "a waiter", waiter, "preview shared")
		turn.Release()
	})
}

func TestPreviewIsNotForCallersAfterAChange(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, g *guard.Guard[string]) error{
		"delete": func(ctx context.Context, g *guard.Guard[string]) error { return g.Delete(ctx, "k") },
		"expire": func(ctx context.Context, g *guard.Guard[string]) error { return g.Expire(ctx, "k") },
		"set":    func(ctx context.Context, g *guard.Guard[string]) error { return g.Set(ctx, "k", "set") },
	} {
		for _, at := range []int{0, 1} {
			t.Run(name, func(t *testing.T) {
				inWorlds(t, func(w *world) {
					fleet := w.fleet(2, policy())
					turn := begin(w, fleet[0], "k")
					turn.Preview("old")
					gets(w, "a waiter", waiting(w, fleet[0]), "preview old")
					must(w, change(context.Background(), fleet[at]))
					want := map[string]string{"delete": "a turn", "expire": "a turn", "set": "set"}[name]
					gets(w, "a caller after the change", waiting(w, fleet[0]), want)
					if turn.Store("old") {
						w.Error("the value was stored")
					}
				})
			})
		}
	}
}

func TestPreviewWithTagsIsForEarlierCallers(t *testing.T) {
	tagsOf := guard.TagsOf(func(string, string) []string { return []string{"a"} })
	ofAll := policy()
	ofAll.Tags = []string{"a"}
	for name, c := range map[string]struct {
		policy guard.Policy
		opts   []guard.Option[string]
		show   func(turn *guard.Turn[string])
	}{
		"given":       {policy(), nil, func(turn *guard.Turn[string]) { turn.Preview("half", "a") }},
		"Fill.Tags":   {policy(), nil, func(turn *guard.Turn[string]) { turn.Fill.Tags = []string{"a"}; turn.Preview("half") }},
		"Policy.Tags": {ofAll, nil, func(turn *guard.Turn[string]) { turn.Preview("half") }},
		"TagsOf":      {policy(), []guard.Option[string]{tagsOf}, func(turn *guard.Turn[string]) { turn.Preview("half") }},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				g, err := guard.New[string](w.open(), "g", c.policy, c.opts...)
				if err != nil {
					w.Fatal(err)
				}
				defer g.Close()
				turn := begin(w, g, "k")
				c.show(turn) // a DeleteTag would end no lease
				late := waiting(w, g)
				time.Sleep(time.Second)
				stillWaits(w, "a caller that came after the turn began", late)
				turn.Store("whole")
				gets(w, "the caller", late, "whole")
			})
		})
	}
}

// The lease of a holder in another process confirms no preview of this process.
func TestPreviewIsNotConfirmedByAnotherLease(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		turn := begin(w, fleet[0], "k")
		turn.Preview("old")
		must(w, fleet[1].Delete(context.Background(), "k"))
		other := begin(w, fleet[1], "k")
		late := waiting(w, fleet[0])
		stillWaits(w, "a caller after the change", late)
		other.Store("new")
		gets(w, "the caller", late, "new")
		turn.Release()
	})
}

func TestPreviewWithoutTheStoreIsForEarlierCallers(t *testing.T) {
	faulty(t, policy(noReserve), cache.Options{}, func(w *world, n *network, _ *redis.Client, g *guard.Guard[string]) {
		turn := begin(w, g, "k")
		turn.Preview("half")
		n.cut()
		late := waiting(w, g)
		time.Sleep(time.Second)
		stillWaits(w, "a caller while Redis is away", late)
		turn.Fail(guard.ErrNotFound)
		if v := <-late; v == "preview half" {
			w.Errorf("a caller that came while Redis was away got %q", v)
		}
	})
}

func TestPreviewIsNotForCallersWithMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := cache.NewMemory(cache.MemoryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		g, err := guard.New[string](m, "g", policy())
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		_, turn, err := g.Begin(context.Background(), "k", nil, guard.MaxAge(0))
		if err != nil || turn == nil {
			t.Fatal(turn, err)
		}
		turn.Preview("half")
		got := make(chan string)
		go func() {
			r, _, _ := g.Begin(context.Background(), "k", nil, guard.MaxAge(0))
			got <- r.Value
		}()
		synctest.Wait()
		turn.Store("whole")
		if v := <-got; v != "whole" {
			t.Errorf("a caller with MaxAge got %q", v)
		}
	})
}

// A heldStore answers to the return of a lease when answer is closed, and is asked for a lease
// by the readers of a preview when ask is closed.
type heldStore struct {
	*tap.Store
	ask, answer chan struct{}
}

func (s *heldStore) Unwrap() store.Store { return s }

func (s *heldStore) Acquire(ctx context.Context, requests []store.Request) []store.Answer {
	if requests[0].Once {
		<-s.ask
	}
	return s.Store.Acquire(ctx, requests)
}

func (s *heldStore) Return(ctx context.Context, returns []store.Return) []store.Returned {
	done := s.Store.Return(ctx, returns)
	if returns[0].Entry != nil || returns[0].Failed {
		<-s.answer
	}
	return done
}

// A late caller's question may find that the lease is gone because the turn is ending. That
// is no loss of the lease: the caller gets the turn's outcome.
func TestPreviewThatMeetsTheTurnsEndLosesNoLease(t *testing.T) {
	for want, end := range map[string]func(*guard.Turn[string]){
		"whole":     func(turn *guard.Turn[string]) { turn.Store("whole") },
		"error: no": func(turn *guard.Turn[string]) { turn.Fail(errors.New("no")) },
	} {
		t.Run(want, func(t *testing.T) {
			inMemory(t, func(w *world) {
				s := &heldStore{tap.New(w.open()), make(chan struct{}), make(chan struct{})}
				g := w.guard(s, policy())
				turn := begin(w, g, "k")
				turn.Preview("half")
				late := waiting(w, g)
				go end(turn)
				synctest.Wait()
				close(s.ask)
				synctest.Wait()
				close(s.answer)
				gets(w, "a late caller", late, want)
				if n := g.Stats().LeasesLost; n > 0 {
					w.Errorf("%d leases count as lost", n)
				}
			})
		})
	}
}
