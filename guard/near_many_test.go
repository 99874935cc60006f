package guard_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stampedeguard/stampede/cache"
)

// A gatedMany store answers reads of many keys only when it is told to.
type gatedMany struct {
	cache.Store
	read chan struct{} // the store has answered
	gate chan struct{} // and the answers may be handed out
}

func (s *gatedMany) ReadMany(ctx context.Context, prefix string, keys []string, each func(int, *cache.Reading, error)) {
	s.Store.ReadMany(ctx, prefix, keys, func(i int, r *cache.Reading, err error) {
		if s.gate != nil {
			s.read <- struct{}{}
			<-s.gate
		}
		each(i, r, err)
	})
}

func TestGetManyKeepsNoInvalidatedValueNear(t *testing.T) {
	inWorlds(t, func(w *world) {
		s := &gatedMany{Store: w.open()}
		g, other := w.guard(s, nearPolicy()), w.guard(w.open(), nearPolicy())
		synctest.Wait()
		must(w, other.Set(w.Context(), "k", "old"))
		synctest.Wait()
		s.read, s.gate = make(chan struct{}), make(chan struct{})
		got := make(chan string)
		go func() { got <- getMany(w, g, []string{"k"}, neverMany)["k"] }()
		<-s.read
		must(w, other.Set(w.Context(), "k", "new"))
		synctest.Wait() // the invalidation has arrived
		s.gate <- struct{}{}
		if v := <-got; v != "old" {
			w.Fatalf("the read from before got %q", v)
		}
		s.gate = nil
		if v, src := source(w, g, "k"); v != "new" {
			w.Errorf("got %q from %v", v, src)
		}
	})
}
