package middleware_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// Purge deletes all variants of a URL. SoftPurge leaves them to be served stale while the
// page is rendered anew.
func ExampleMiddleware_Purge() {
	store := exampleStore()
	defer store.Close()
	m, err := middleware.New(store, middleware.Options{TTL: time.Minute, Stale: time.Hour, Host: "shop.example"})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	version := 1
	page := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "version ", version)
	}))
	get := func() {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(w.Body)
	}
	ctx := context.Background()
	get()
	version = 2
	if err := m.Purge(ctx, "http://shop.example/"); err != nil {
		log.Fatal(err)
	}
	get()
	// Output:
	// version 1
	// version 2
}
