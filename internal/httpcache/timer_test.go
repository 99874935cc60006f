package httpcache_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stampedeguard/stampede/internal/httpcache"
)

func TestStoppedTimerHoldsNoPage(t *testing.T) {
	var held weak.Pointer[httpcache.Page]
	stop := func() func() {
		p := &httpcache.Page{Body: make([]byte, 1<<20)}
		held = weak.Make(p)
		return httpcache.AfterFunc(time.Hour, p, func(*httpcache.Page) { t.Error("a stopped timer went off") })
	}()
	if runtime.GC(); held.Value() == nil {
		t.Error("a timer that runs has let go of its page")
	}
	stop()
	if runtime.GC(); held.Value() != nil {
		t.Error("a stopped timer holds its page")
	}
}

func TestTimerGoesOffOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		stop := httpcache.AfterFunc(time.Second, &n, func(n *atomic.Int32) { n.Add(1) })
		time.Sleep(2 * time.Second)
		if stop(); n.Load() != 1 {
			t.Errorf("it went off %d times", n.Load())
		}
	})
}
