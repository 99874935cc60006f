package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware"
)

func TestTwentyRequestsShareOneRun(t *testing.T) {
	for name, routes := range map[string]func(*middleware.Middleware, *atomic.Int64) http.Handler{"chi": withChi, "gin": withGin} {
		t.Run(name, func(t *testing.T) {
			store, err := cache.NewMemory(cache.MemoryOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			m, err := middleware.New(store, middleware.Options{TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			var runs atomic.Int64
			server := httptest.NewServer(routes(m, &runs))
			defer server.Close()
			var requests sync.WaitGroup
			for range 20 {
				requests.Go(func() {
					resp, err := http.Get(server.URL + "/report")
					if err != nil {
						t.Error(err)
						return
					}
					defer resp.Body.Close()
					if body, err := io.ReadAll(resp.Body); string(body) != "run 1\n" || err != nil {
						t.Errorf("got %q, %v", body, err)
					}
				})
			}
			requests.Wait()
		})
	}
}
