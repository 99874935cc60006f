package otelstampede_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/otelstampede"
)

func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	tel, err := otelstampede.New(otelstampede.Options{}) // the global providers
	if err != nil {
		log.Fatal(err)
	}
	store, err := cache.NewRedis(client, cache.Options{Namespace: "shop", Observer: tel})
	if err != nil {
		log.Fatal(err)
	}
	users, err := guard.New[string](store, "users", guard.Policy{TTL: time.Minute, Observer: tel})
	if err != nil {
		log.Fatal(err)
	}
	_ = users
}

// A fetch is a span.
func ExampleTelemetry() {
	spans := tracetest.NewInMemoryExporter() // stands in for your exporter
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))

	tel, err := otelstampede.New(otelstampede.Options{TracerProvider: provider})
	if err != nil {
		log.Fatal(err)
	}
	defer tel.Close()
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	users, err := guard.New[string](store, "users", guard.Policy{TTL: time.Minute, Observer: tel})
	if err != nil {
		log.Fatal(err)
	}
	defer users.Close()

	_, err = users.Get(context.Background(), "42", func(context.Context) (string, error) { return "Ada", nil })
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name, err)
	}
	// Output: fetch users <nil>
}
