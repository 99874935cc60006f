// Command routers serves a report that takes half a second with chi or gin, behind the
// middleware:
//
//	go run . -router gin
//	for i in 1 2 3 4; do curl -si localhost:8082/report & done
//
// It is a module of its own, so that the library does not depend on the routers.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware"
)

func main() {
	router := flag.String("router", "chi", "chi or gin")
	listen := flag.String("listen", "127.0.0.1:8082", "address to listen on")
	flag.Parse()
	store, err := cache.NewMemory(cache.MemoryOptions{}) // cache.NewRedis for a fleet
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	m, err := middleware.New(store, middleware.Options{TTL: 10 * time.Second, Stale: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	var runs atomic.Int64
	handler := withChi(m, &runs)
	if *router == "gin" {
		handler = withGin(m, &runs)
	}
	log.Printf("routers: %s on http://%s/report", *router, *listen)
	log.Print(http.ListenAndServe(*listen, handler))
}

// withChi puts the middleware in front of single routes. A handler that reads chi's
// parameters needs middleware.Options.Context with chi.RouteCtxKey.
func withChi(m *middleware.Middleware, runs *atomic.Int64) http.Handler {
	r := chi.NewRouter()
	r.With(m.Wrap).Get("/report", func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(500 * time.Millisecond)
		fmt.Fprintf(w, "run %d\n", runs.Add(1))
	})
	r.Get("/live", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	return r
}

// withGin puts the middleware in front of the engine: gin's writer is pooled, and a run may
// outlive its client's request. Routes that must not be shared say so with Cache-Control.
func withGin(m *middleware.Middleware, runs *atomic.Int64) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.GET("/report", func(c *gin.Context) {
		time.Sleep(500 * time.Millisecond)
		c.String(http.StatusOK, "run %d\n", runs.Add(1))
	})
	r.GET("/live", func(c *gin.Context) {
		c.Header("Cache-Control", "no-store")
		c.String(http.StatusOK, "ok\n")
	})
	return m.Wrap(r)
}
