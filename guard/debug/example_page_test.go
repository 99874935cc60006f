package debug_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/debug"
)

// A program reads the page as JSON.
func ExamplePage_ServeHTTP() {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	page, err := debug.New(debug.Options{HideKeys: true})
	if err != nil {
		log.Fatal(err)
	}
	defer page.Close()
	users, err := guard.New[string](store, "users", guard.Policy{TTL: time.Minute, Observer: page})
	if err != nil {
		log.Fatal(err)
	}
	defer users.Close()

	for range 4 {
		_, _ = users.Get(context.Background(), "42", func(context.Context) (string, error) { return "Ada", nil })
	}
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/stampede?format=json", nil))
	var report debug.Report
	if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil {
		log.Fatal(err)
	}
	for _, g := range report.Guards {
		fmt.Println(g.Name, "requests:", g.Requests, "from the store:", g.Sources["store"])
	}
	// Output: users requests: 4 from the store: 3
}
