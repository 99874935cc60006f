package guard_test

import (
	"context"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

func TestFetchHearsThatItsLeaseIsLost(t *testing.T) {
	first, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	open := func() *guard.Guard[string] {
		s := first.Join()
		t.Cleanup(func() { _ = s.Close() })
		g, err := guard.New[string](s, "g", guard.Policy{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	g, other := open(), open()
	runs := 0
	_, err = g.Load(t.Context(), "k", func(ctx context.Context, f *guard.Fill[string]) (string, error) {
		if runs++; runs > 1 {
			return "new", nil
		}
		select {
		case <-f.Lost():
			t.Error("the lease is lost at once")
		default:
		}
		if err := other.Delete(ctx, "k"); err != nil {
			t.Error(err)
		}
		<-f.Lost()
		return "old", nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Of a batch that is fetched in parts, a key whose lease is lost before its part is fetched
// under a new lease, so that its value is stored.
func TestBatchFetchesUnderNoLostLease(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.MaxBatch = 1 }))[0]
		o := &manyOrigin{takes: time.Second}
		go func() {
			time.Sleep(500 * time.Millisecond)
			must(w, g.DeleteMany(ctx, []string{"a", "b", "c"})) // the first of them is being fetched
		}()
		keys := []string{"a", "b", "c"}
		equal(w, getMany(w, g, keys, o.fetch), valuesOf(keys))
		stored, err := g.PeekMany(ctx, keys)
		must(w, err)
		if len(stored) < 2 {
			w.Errorf("stored: %v, want all but the value that was fetched during the deletion; fetches %v", stored, o.calls)
		}
	})
}
