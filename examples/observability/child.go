package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/guard/debug"
	"github.com/stampedeguard/stampede/otelstampede"
	"github.com/stampedeguard/stampede/promstampede"
)

// child is one process: guards under load, and what shows them. It ends with its standard
// input.
func child() error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	number, _ := strconv.Atoi(os.Getenv(childEnv))

	// Everything reports to one observer.
	metrics := promstampede.New()
	page, err := debug.New(debug.Options{AllowReset: true})
	if err != nil {
		return err
	}
	traces, err := tracing(ctx, number)
	if err != nil {
		return err
	}
	tel, err := otelstampede.New(otelstampede.Options{TracerProvider: traces, MeterProvider: noop.NewMeterProvider(), Keys: true})
	if err != nil {
		return err
	}
	observer := cache.Observers(tel, metrics, page)

	l := &load{number: number, traces: traces.Tracer("example")}
	l.set(os.Getenv(scenarioEnv))
	client := redis.NewClient(&redis.Options{Addr: os.Getenv(redisEnv), MaxRetries: -1})
	store, err := cache.NewRedis(client, cache.Options{Namespace: "example", Observer: observer})
	if err != nil {
		return err
	}
	quota, err := budget.New(client, "prices", budget.Limit{Rate: 25, Per: time.Second, Burst: 60}, budget.Options{Namespace: "example", Observer: observer})
	if err != nil {
		return err
	}
	if err := l.open(store, quota, observer); err != nil {
		return err
	}

	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/debug/stampede", page)
	mux.HandleFunc("/ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /scenario", func(_ http.ResponseWriter, r *http.Request) { l.set(r.FormValue("name")) })
	listener, err := net.Listen("tcp", os.Getenv(addrEnv))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	l.run(ctx)
	_ = server.Close()
	l.close()
	_ = traces.Shutdown(context.Background())
	return errors.Join(quota.Close(), store.Close(), client.Close(), page.Close(), tel.Close())
}

// tracing sends spans to OTLP, or tells the parent of fetches and waits.
func tracing(ctx context.Context, number int) (*trace.TracerProvider, error) {
	var exporter trace.SpanExporter = &teller{out: json.NewEncoder(os.Stdout)}
	if url := os.Getenv(otlpEnv); url != "" {
		var err error
		if exporter, err = otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(url)); err != nil {
			return nil, err
		}
	}
	service := resource.NewSchemaless(
		attribute.String("service.name", "stampede-example"), attribute.String("service.instance.id", strconv.Itoa(number)))
	return trace.NewTracerProvider(trace.WithBatcher(exporter, trace.WithBatchTimeout(500*time.Millisecond)), trace.WithResource(service)), nil
}

// A teller tells the parent of fetches and waits.
type teller struct {
	mu  sync.Mutex
	out *json.Encoder
}

// ExportSpans implements [trace.SpanExporter].
func (t *teller) ExportSpans(_ context.Context, spans []trace.ReadOnlySpan) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range spans {
		if !strings.HasPrefix(s.Name(), "fetch ") && !strings.HasPrefix(s.Name(), "wait ") {
			continue
		}
		told := span{
			Name: s.Name(), Trace: s.SpanContext().TraceID().String(), ID: s.SpanContext().SpanID().String(),
			Took: s.EndTime().Sub(s.StartTime()),
		}
		for _, link := range s.Links() {
			told.Links = append(told.Links, link.SpanContext.SpanID().String())
		}
		if err := t.out.Encode(told); err != nil {
			return err
		}
	}
	return nil
}

// Shutdown implements [trace.SpanExporter].
func (t *teller) Shutdown(context.Context) error { return nil }
