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
