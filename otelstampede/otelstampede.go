// Package otelstampede reports guards, stores, budgets and locks to OpenTelemetry: metrics, a span
// for each fetch, and a span for each wait that links to the fetch, also when the fetch
// runs in another process.
//
//	tel, err := otelstampede.New(otelstampede.Options{})
//	store, err := cache.NewRedis(client, cache.Options{Namespace: "app", Observer: tel})
//	users, err := guard.New[User](store, "users", guard.Policy{TTL: time.Minute, Observer: tel})
//
// The package depends on OpenTelemetry's API, not on its SDK. The names of the metrics and
// of the attributes are listed in docs/guide/observability.md.
package otelstampede

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/measure"
)

const scope = "github.com/stampedeguard/stampede/otelstampede"

// Options configure [New]. The zero value of each field means its default.
type Options struct {
	// MeterProvider makes the instruments. Use noop.NewMeterProvider() of
	// go.opentelemetry.io/otel/metric/noop for traces without metrics. Default: the global
	// one.
	MeterProvider metric.MeterProvider

	// TracerProvider makes the spans. Default: the global one.
	TracerProvider trace.TracerProvider

	// Keys adds the key to spans, as stampede.key, cut to 200 bytes. The texts of a guard's
	// errors name keys in any case. If its policy sets HideKeys, a guard shows none. Default:
	// no attribute.
	Keys bool
}

// Telemetry is an observer of guards, stores, budgets and locks: give it to each of them as
// Observer. It is safe for concurrent use.
type Telemetry struct {
	registry    measure.Registry
	instruments *instruments
	tracer      trace.Tracer
	keys        bool
}

var (
	_ cache.ContextObserver = (*Telemetry)(nil)
	_ cache.Tracer          = (*Telemetry)(nil)
	_ cache.Attacher        = (*Telemetry)(nil)
)

// New returns an observer that reports to the given providers. The error is that of a
// meter that cannot make an instrument.
func New(opts Options) (*Telemetry, error) {
	if opts.MeterProvider == nil {
		opts.MeterProvider = otel.GetMeterProvider()
	}
	if opts.TracerProvider == nil {
		opts.TracerProvider = otel.GetTracerProvider()
	}
	t := &Telemetry{tracer: opts.TracerProvider.Tracer(scope), keys: opts.Keys}
	var err error
	if t.instruments, err = newInstruments(opts.MeterProvider.Meter(scope), &t.registry); err != nil {
		return nil, fmt.Errorf("otelstampede: New: %w", err)
	}
	return t, nil
}

// Close ends the reading of the components' numbers.
func (t *Telemetry) Close() error { return t.instruments.reading.Unregister() }

// Attach implements [cache.Attacher].
func (t *Telemetry) Attach(name string, component any) (detach func()) {
	return t.registry.Attach(name, component)
}

// Observe implements [cache.Observer].
func (t *Telemetry) Observe(ev cache.Event) { t.ObserveContext(context.Background(), ev) }

// ObserveContext implements [cache.ContextObserver].
func (t *Telemetry) ObserveContext(ctx context.Context, ev cache.Event) {
	t.instruments.record(ctx, &ev)
	if ev.Kind == cache.CallWaited {
		t.traceWait(ctx, &ev)
	}
}

// ObserveHit adds the source and the age of the value to
// the caller's span.
func (t *Telemetry) ObserveHit(ctx context.Context, from guard.Source, age time.Duration) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("stampede.source", from.String()), attribute.Float64("stampede.age", age.Seconds()))
	}
}

// key adds the key of an event to the attributes, if keys are shown.
func (t *Telemetry) key(attrs []attribute.KeyValue, key string) []attribute.KeyValue {
	if !t.keys || key == "" {
		return attrs
	}
	const longest = 200
	if len(key) > longest {
		key = key[:longest]
	}
	return append(attrs, attribute.String("stampede.key", strings.ToValidUTF8(key, "\uFFFD")))
}
