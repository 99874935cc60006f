package lock_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/lock"
)

// Several goroutines find at once that the lock's time is over. One of them ends the lock;
// each of them finds the context ended.
func TestContextHasEndedWhenTheLockHas(t *testing.T) {
	l := newLocker(t, lock.Options{TTL: 10 * time.Millisecond, NoRenew: true}, lock.On(memoryStore(t)))
	for round := 0; round < 120 && !t.Failed(); round++ {
		var looks sync.WaitGroup
		for i := range 50 {
			k, err := l.Lock(t.Context(), fmt.Sprint(round, "of", i))
			if errors.Is(err, lock.ErrUnavailable) {
				continue // the machine was busy for the whole TTL
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx, over := k.Context(), time.After(k.Valid())
			start := sync.OnceFunc(func() { <-over })
			for range 4 {
				looks.Go(func() {
					for start(); k.Valid() > 0; {
					}
					if ctx.Err() == nil {
						t.Error("the time is over, and the context has not ended")
					}
				})
			}
		}
		looks.Wait()
	}
}
