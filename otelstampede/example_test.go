package otelstampede_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/otelstampede"
)

func ExampleNew() {
	spans := tracetest.NewInMemoryExporter() // stands in for your exporter
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))

	tel, err := otelstampede.New(otelstampede.Options{TracerProvider: provider}) // the global ones by default
	if err != nil {
		log.Fatal(err)
	}
	defer tel.Close()
	store, err := cache.NewMemory(cache.MemoryOptions{}) // cache.NewRedis takes tel in Options.Observer
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
