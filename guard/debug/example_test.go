package debug_test

import (
	"expvar"
	"log"
	"log/slog"
	"net/http"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/debug"
)

func ExampleNew() {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	page, err := debug.New(debug.Options{})
	if err != nil {
		log.Fatal(err)
	}
	observer := cache.Observers(page, guard.LogObserver(slog.Default()))
	users, err := guard.New[string](store, "users", guard.Policy{TTL: time.Minute, Observer: observer})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/debug/stampede", page)
	expvar.Publish("stampede", page) // on request
	_ = users
}
