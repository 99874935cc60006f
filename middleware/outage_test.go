package middleware_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/middleware"
)

func TestPagesOutliveRedis(t *testing.T) {
	for _, fault := range []string{"killed", "frozen"} {
		t.Run(fault, func(t *testing.T) {
			server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
			n := 0
			store, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test", RedisTimeout: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			s := openOn(t, store, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					n++
					fmt.Fprint(w, "page ", n)
				}
			})
			for i, path := range []string{"/a", "/b"} {
				page := fmt.Sprint("page ", i+1)
				s.is(s.do(path), 200, page)
				for s.m.Stats().Guard.ReserveEntries == i { // until the process hears of changes
					s.stored(path, page)
				}
			}
			end := server.Kill
			if fault == "frozen" {
				end = server.Pause
				defer func() { _ = server.Resume() }()
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			before := s.runs.Load()
			for range 10 {
				s.is(s.do("/a"), 200, "page 1")
			}
			if runs := s.runs.Load() - before; runs != 0 {
				t.Errorf("the handler ran %d times", runs)
			}
			s.do("POST /b") // invalidates the page in this process, whether Redis answers or not
			s.is(s.do("/b"), 200, "page 3")
		})
	}
}
