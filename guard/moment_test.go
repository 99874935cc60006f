package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// asking starts a Get and returns where its answer will be.
func asking(g *guard.Guard[string], fetch guard.FetchFunc[string]) <-chan answer {
	got := make(chan answer, 1)
	go func() { got <- callers([]*guard.Guard[string]{g}, 1, "k", fetch)[0] }()
	synctest.Wait()
	return got
}

// A late store keeps messages and answers back until they are let go.
type late struct {
	cache.Store
	messages, answers chan struct{} // closed: they come; nil: at once
}

func (s *late) Watch(key string) *cache.Watch {
	inner := s.Store.Watch(key)
	ctx, cancel := context.WithCancel(context.Background())
	w := cache.NewWatch(func() { cancel(); inner.Close() })
	go func() { // ends with the watch
		for {
			select {
			case m := <-inner.C:
				if m.Signal != cache.Confirmed {
					<-s.messages
				}
				w.Push(m)
			case <-ctx.Done():
				return
			}
		}
	}()
	return w
}

func (s *late) Acquire(ctx context.Context, key string, ask cache.Ask) (cache.Answer, error) {
	a, err := s.Store.Acquire(ctx, key, ask)
	if s.answers != nil {
		<-s.answers
	}
	return a, err
}

// A message tells the outcome of a lease that was held when the waiters asked. A
// caller that joins them later may come after a Delete.
func TestLateMessageIsNotForLaterCallers(t *testing.T) {
	inMemory(t, func(w *world) {
		other := w.open()
		s := &late{Store: w.open(), messages: make(chan struct{})}
		g := w.guard(s, policy())
		ctx := w.Context()
		a, err := other.Acquire(ctx, "g:k", cache.Ask{TTL: time.Minute, RenewFor: time.Minute, Window: time.Hour})
		must(w, err)
		o := &origin{}
		before := asking(g, o.fetch)
		entry := &cache.Entry{Kind: cache.Value, Codec: cache.CodecFor[string]().ID(), TTL: time.Hour, FreshFor: time.Hour, Payload: []byte("old")}
		if ok, err := other.Fill(ctx, a.Lease, entry); !ok || err != nil {
			w.Fatal(ok, err)
		}
		must(w, other.Delete(ctx, "g:k"))
		after := asking(g, o.fetch)
		close(s.messages)
		if a := <-before; a.value != "old" || a.err != nil {
			w.Errorf("the caller from before got %q, %v", a.value, a.err)
		}
		if a := <-after; a.value != "v1" || a.err != nil {
			w.Errorf("the caller after the Delete got %q, %v", a.value, a.err)
		}
	})
}

func TestPauseIsNotForCallersAfterAReset(t *testing.T) {
	inMemory(t, func(w *world) {
		other := w.guard(w.open(), policy())
		s := &late{Store: w.open()}
		g := w.guard(s, policy())
		ctx := w.Context()
		boom := errors.New("boom")
		_, err := other.Get(ctx, "k", func(context.Context) (string, error) { return "", guard.RetryAfter(boom, time.Minute) })
		if !errors.Is(err, boom) {
			w.Fatal(err)
		}
		s.answers = make(chan struct{})
		o := &origin{}
		before := asking(g, o.fetch)
		must(w, other.Reset(ctx, "k"))
		after := asking(g, o.fetch)
		close(s.answers)
		if a := <-before; a.err == nil {
			w.Errorf("the caller from before got %q and no error", a.value)
		}
		if a := <-after; a.value != "v1" || a.err != nil {
			w.Errorf("the caller after the Reset got %q, %v", a.value, a.err)
		}
	})
}

// Processes that are just reconnecting look dead once.
func TestQuarantineIsBelievedOnlyWhenAnsweredTwice(t *testing.T) {
	inMemory(t, func(w *world) {
		quarantined := func() cache.Answer { return cache.Answer{Verdict: cache.Quarantined, TTL: time.Minute} }
		held := func() cache.Answer {
			return cache.Answer{Verdict: cache.Held, Holder: cache.NewMinter().Token(), TTL: time.Millisecond}
		}
		o := &origin{}
		if a := callers([]*guard.Guard[string]{w.guard(newStaged(w.open(), quarantined), policy())}, 1, "k", o.fetch)[0]; a.value != "v1" || a.took < 50*time.Millisecond {
			w.Errorf("quarantined once: %q, %v after %v", a.value, a.err, a.took)
		}
		g := w.guard(newStaged(w.open(), quarantined, held, quarantined), policy())
		if v := get(w, g, "other", o.fetch); v != "v2" {
			w.Errorf("quarantined twice, and held in between: %q", v)
		}
		g = w.guard(newStaged(w.open(), quarantined, quarantined), policy())
		if _, err := g.Get(w.Context(), "third", o.fetch); !errors.Is(err, guard.ErrQuarantined) {
			w.Errorf("quarantined twice in a row: %v", err)
		}
	})
}
