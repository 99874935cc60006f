package middleware_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware"
)

// exampleStore is a store that needs no Redis.
func exampleStore() *cache.Memory {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	return store
}

func ExampleNew() {
	store := exampleStore()
	defer store.Close()
	m, err := middleware.New(store, middleware.Options{
		TTL:   time.Minute, // for responses that state no lifetime
		Stale: time.Hour,
		Query: []string{"page"}, // others, of campaigns say, tell no responses apart
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	report := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("rendering page", r.FormValue("page"))
		fmt.Fprint(w, "report")
	})
	mux := http.NewServeMux()
	mux.Handle("GET /report", m.Wrap(report))
	for _, url := range []string{"/report?page=1", "/report?page=1&campaign=mail"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
		fmt.Println(w.Code, w.Body)
	}
	s := m.Stats()
	fmt.Println("requests:", s.Requests, "hits:", s.Hits)
	// Output:
	// rendering page 1
	// 200 report
	// 200 report
	// requests: 2 hits: 1
}

// A change of a product deletes each page that shows it.
func ExampleMiddleware_PurgeTag() {
	store := exampleStore()
	defer store.Close()
	m, err := middleware.New(store, middleware.Options{
		TTL:             time.Minute,
		TagHeaders:      []string{"Surrogate-Key"},
		HideCacheStatus: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	price := 10
	shop := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Surrogate-Key", "product-7")
		fmt.Fprintf(w, "price: %d", price)
	}))
	get := func() {
		w := httptest.NewRecorder()
		shop.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/offers", nil))
		fmt.Println(w.Body)
	}
	get()
	price = 12
	get()
	if err := m.PurgeTag(context.Background(), "product-7"); err != nil {
		log.Fatal(err)
	}
	get()
	// Output:
	// price: 10
	// price: 10
	// price: 12
}

// The method PURGE deletes the page of its URL, for those clients that the function allows.
func ExampleMiddleware_PurgeHandler() {
	store := exampleStore()
	defer store.Close()
	m, err := middleware.New(store, middleware.Options{TTL: time.Minute, HideCacheStatus: true})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	mux := http.NewServeMux()
	mux.Handle("GET /report", m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("rendering")
		fmt.Fprint(w, "report")
	})))
	mux.Handle("PURGE /", m.PurgeHandler(func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer secret" }))
	for _, method := range []string{"GET", "PURGE", "GET"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(method, "/report", nil)
		if method == "PURGE" {
			r.Header.Set("Authorization", "Bearer secret")
		}
		mux.ServeHTTP(w, r)
		fmt.Println(method, w.Code)
	}
	// Output:
	// rendering
	// GET 200
	// PURGE 204
	// rendering
	// GET 200
}

// A handler that serves anonymous and known visitors learns from Shared that its response
// may answer other requests.
func ExampleShared() {
	store := exampleStore()
	defer store.Close()
	m, err := middleware.New(store, middleware.Options{TTL: time.Minute, HideCacheStatus: true})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	page := m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("for all visitors:", middleware.Shared(r.Context()))
	}))
	anonymous := httptest.NewRequest(http.MethodGet, "/", nil)
	page.ServeHTTP(httptest.NewRecorder(), anonymous)
	known := httptest.NewRequest(http.MethodGet, "/", nil)
	known.Header.Set("Authorization", "Bearer secret")
	page.ServeHTTP(httptest.NewRecorder(), known)
	// Output:
	// for all visitors: true
	// for all visitors: false
}

// Rules give some paths other terms.
func ExampleRule() {
	store := exampleStore()
	defer store.Close()
	m, err := middleware.New(store, middleware.Options{
		TTL: time.Minute,
		Rules: []middleware.Rule{
			{Pattern: "/health", Bypass: true},
			{Pattern: "/news/{article}", TTL: time.Hour},
		},
		Observe: func(ev middleware.Event) {
			fmt.Println(ev.Request.URL.Path, ev.Fwd, ev.TTL)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	site := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	for _, url := range []string{"/health", "/news/42", "/"} {
		site.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, url, nil))
	}
	// Output:
	// /health bypass 0s
	// /news/42 uri-miss 1h0m0s
	// / uri-miss 1m0s
}
