package guard

import (
	"sync"
	"testing"
)

func TestTallyAddsUpAllGoroutines(t *testing.T) {
	var c tally
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 1000 {
				c.add()
			}
		})
	}
	wg.Wait()
	if n := c.sum(); n != 64*1000 {
		t.Errorf("%d, not 64000", n)
	}
}
