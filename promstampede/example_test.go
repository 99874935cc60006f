package promstampede_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/promstampede"
)

func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	metrics := promstampede.New()
	prometheus.MustRegister(metrics)
	store, err := cache.NewRedis(client, cache.Options{Namespace: "shop", Observer: metrics})
	if err != nil {
		log.Fatal(err)
	}
	users, err := guard.New[string](store, "users", guard.Policy{TTL: time.Minute, Observer: metrics})
	if err != nil {
		log.Fatal(err)
	}
	_ = users
}

// The requests are counted by the source of their values.
func ExampleCollector() {
	registry := prometheus.NewRegistry() // or the default one, by prometheus.MustRegister
	metrics := promstampede.New()
	registry.MustRegister(metrics)

	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	users, err := guard.New[string](store, "users", guard.Policy{TTL: time.Minute, Observer: metrics})
	if err != nil {
		log.Fatal(err)
	}
	defer users.Close()

	for range 4 {
		_, err = users.Get(context.Background(), "42", func(context.Context) (string, error) { return "Ada", nil })
	}
	if err != nil {
		log.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if n := m.GetCounter().GetValue(); n > 0 && f.GetName() == "stampede_requests_total" {
				fmt.Println(m.GetLabel()[2].GetValue(), n)
			}
		}
	}
	// Output:
	// own_fetch 1
	// store 3
}
