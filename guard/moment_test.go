package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

// asking starts a Get of k. It returns when the Get waits, with the channel of its answer.
func asking(g *guard.Guard[string], fetch fetcher) <-chan answer {
	got := make(chan answer, 1)
	go func() { got <- callers([]*guard.Guard[string]{g}, 1, "k", fetch)[0] }()
	synctest.Wait()
	return got
}

// gated returns a store on s that holds up the answers to acquires, or the messages,
// until their channel is closed. A nil channel holds nothing up.
func gated(w *world, s cache.Store, answers, messages chan struct{}) *tap.Store {
	t := tap.New(s)
	t.OnAcquire = func(requests []store.Request) []store.Answer {
		all := t.Store.Acquire(context.Background(), requests)
		if answers != nil {
			<-answers
		}
		return all
	}
	if messages == nil {
		return t
	}
	t.OnWatch = func(key string) *store.Watch {
		inner := t.Store.Watch(key)
		ctx, cancel := context.WithCancel(w.Context())
		outer := store.NewWatch(func() { cancel(); inner.Close() })
		go func() { // ends with the watch
			for {
				select {
				case m := <-inner.C:
					if m.Signal != store.Confirmed {
						<-messages
					}
					outer.Push(m)
				case <-ctx.Done():
					return
				}
			}
		}()
		return outer
	}
	return t
}

// A message tells the outcome of a lease that was held when the waiters asked. A caller
// that joins them later may come after a Delete.
func TestLateMessageIsNotForLaterCallers(t *testing.T) {
	inMemory(t, func(w *world) {
		other, messages := w.open(), make(chan struct{})
		g := w.guard(gated(w, w.open(), nil, messages), policy())
		lease := held(w, other, "g:k")
		o := &origin{}
		before := asking(g, o.fetch)
		entry := &store.Entry{Kind: store.Value, Codec: cache.CodecFor[string]().ID(), TTL: time.Hour, FreshFor: time.Hour, Payload: []byte("old")}
		if r := other.Unwrap().Return(w.Context(), []store.Return{{Lease: lease, Entry: entry}})[0]; !r.OK {
			w.Fatal(r)
		}
		must(w, other.Unwrap().Change(w.Context(), []store.Change{{Kind: store.Delete, Key: "g:k"}})[0])
		after := asking(g, o.fetch)
		close(messages)
		if a := <-before; a.value != "old" || a.err != nil {
			w.Errorf("the caller from before the Delete got %q, %v", a.value, a.err)
		}
		if a := <-after; a.value != "v1" || a.err != nil {
			w.Errorf("the caller from after the Delete got %q, %v", a.value, a.err)
		}
	})
}

func TestPauseIsNotForCallersAfterAReset(t *testing.T) {
	inMemory(t, func(w *world) {
		other, answers := w.guard(w.open(), policy()), make(chan struct{})
		g := w.guard(gated(w, w.open(), answers, nil), policy())
		boom := errors.New("boom")
		_, err := other.Get(w.Context(), "k", func(context.Context) (string, error) { return "", guard.RetryAfter(boom, time.Minute) })
		if !errors.Is(err, boom) {
			w.Fatal(err)
		}
		o := &origin{}
		before := asking(g, o.fetch)
		must(w, other.Reset(w.Context(), "k"))
		after := asking(g, o.fetch)
		close(answers)
		if a := <-before; a.err == nil {
			w.Errorf("the caller from before the Reset got %q and no error", a.value)
		}
		if a := <-after; a.value != "v1" || a.err != nil {
			w.Errorf("the caller from after the Reset got %q, %v", a.value, a.err)
		}
	})
}

// Processes that are just reconnecting look dead once.
func TestQuarantineIsBelievedOnlyWhenAnsweredTwice(t *testing.T) {
	inMemory(t, func(w *world) {
		quarantined := func() store.Answer { return store.Answer{Verdict: store.Quarantined, TTL: time.Minute} }
		heldShortly := func() store.Answer {
			return store.Answer{Verdict: store.Held, Holder: store.NewMinter().Token(), TTL: time.Millisecond}
		}
		o := &origin{}
		g := w.guard(newStaged(w.open(), quarantined), policy())
		if a := callers([]*guard.Guard[string]{g}, 1, "k", o.fetch)[0]; a.value != "v1" || a.took < 50*time.Millisecond {
			w.Errorf("quarantined once: %q, %v after %v", a.value, a.err, a.took)
		}
		g = w.guard(newStaged(w.open(), quarantined, heldShortly, quarantined), policy())
		if v := get(w, g, "other", o.fetch); v != "v2" {
			w.Errorf("quarantined twice, and held in between: %q", v)
		}
		g = w.guard(newStaged(w.open(), quarantined, quarantined), policy())
		if _, err := g.Get(w.Context(), "third", o.fetch); !errors.Is(err, guard.ErrQuarantined) {
			w.Errorf("quarantined twice in a row: %v", err)
		}
	})
}

// A flight that waits for another may outlast a deletion. Its fetch starts after it.
func TestTagDeletedBeforeAWaiterFetchesSpoilsNothing(t *testing.T) {
	inWorlds(t, func(w *world) {
		other := w.open()
		g := w.guard(w.open(), policy(tagged("t")))
		time.Sleep(time.Second)
		lease := held(w, other, "g:k")
		o := &origin{}
		got := asking(g, o.fetch)
		time.Sleep(time.Second) // it waits
		must(w, g.DeleteTag(w.Context(), "t"))
		released(w, other, lease)
		if a := <-got; a.value != "v1" || a.err != nil {
			w.Fatalf("got %q, %v", a.value, a.err)
		}
		if v := get(w, g, "k", o.fetch); v != "v1" {
			w.Errorf("the next caller got %q: the fetch was in vain", v)
		}
	})
}

// A read of many keys is under way when one of them changes.
func TestGetManyKeepsNoInvalidatedValueNear(t *testing.T) {
	inWorlds(t, func(w *world) {
		s := tap.New(w.open())
		g, other := w.guard(s, nearPolicy()), w.guard(w.open(), nearPolicy())
		synctest.Wait()
		must(w, other.Set(w.Context(), "k", "old"))
		must(w, other.Set(w.Context(), "l", "old"))
		synctest.Wait()
		read, gate := make(chan struct{}, 2), make(chan struct{})
		s.OnRead = func(_ string, r *store.Reading, err error) (*store.Reading, error) {
			read <- struct{}{}
			<-gate
			return r, err
		}
		got := make(chan string)
		go func() { got <- getMany(w, g, []string{"k", "l"}, neverMany)["k"] }()
		<-read
		must(w, other.Set(w.Context(), "k", "new"))
		synctest.Wait() // the invalidation has arrived
		close(gate)
		if v := <-got; v != "old" {
			w.Fatalf("the read from before got %q", v)
		}
		if v, src := source(w, g, "k"); v != "new" {
			w.Errorf("got %q from %v", v, src)
		}
	})
}
