package otelstampede_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware"
	"github.com/stampedeguard/stampede/middleware/transport"
	"github.com/stampedeguard/stampede/otelstampede"
)

// telemetry is that of a process without a guard.
func telemetry(t *testing.T) (*process, *otelstampede.Telemetry, cache.Store) {
	t.Helper()
	p := &process{spans: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader()}
	p.traces = trace.NewTracerProvider(trace.WithSyncer(p.spans))
	tel, err := otelstampede.New(otelstampede.Options{
		MeterProvider: metric.NewMeterProvider(metric.WithReader(p.reader)), TracerProvider: p.traces,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := memory(t)(tel)
	t.Cleanup(func() { _ = tel.Close(); _ = s.Close() })
	return p, tel, s
}

var page = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "max-age=60")
	_, _ = io.WriteString(w, "a page")
})

// wantFetchThenHit checks the telemetry of two requests for one page.
func wantFetchThenHit(t *testing.T, p *process, name string) {
	t.Helper()
	for len(p.named("fetch "+name)) == 0 { // it ends after the response has streamed
		time.Sleep(time.Millisecond)
	}
	fetches, requests := p.named("fetch "+name), p.named("request")
	if len(fetches) != 1 || fetches[0].Parent.SpanID() != requests[0].SpanContext.SpanID() {
		t.Errorf("spans %v, want one fetch, a child of the first request", p.spans.GetSpans())
	}
	if got := attr(requests[1], "stampede.source"); got != "store" {
		t.Errorf("the second request's source is %s, want store", got)
	}
	guard := attribute.String("stampede.guard.name", name)
	if n := p.value(t, "stampede.fetch.duration", guard); n != 1 {
		t.Errorf("%v fetches were measured, want 1", n)
	}
	if n := p.value(t, "stampede.requests", guard, attribute.String("stampede.source", "store")); n != 1 {
		t.Errorf("%v hits were counted, want 1", n)
	}
}

func TestMiddlewareReportsToItsObserver(t *testing.T) {
	p, tel, store := telemetry(t)
	m, err := middleware.New(store, middleware.Options{Observer: tel})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	h := m.Wrap(page)
	for range 2 {
		p.request(func(ctx context.Context) {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx))
		})
		for p.value(t, "stampede.entry.size") == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	wantFetchThenHit(t, p, "http")
}

func TestTransportReportsToItsObserver(t *testing.T) {
	server := httptest.NewServer(page)
	defer server.Close()
	p, tel, store := telemetry(t)
	tr, err := transport.New(store, transport.Options{Name: "upstream", Observer: tel})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tr.Close() }()
	client := &http.Client{Transport: tr}
	for range 2 {
		p.request(func(ctx context.Context) {
			r, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		})
		for p.value(t, "stampede.entry.size") == 0 { // the page is stored after it has streamed
			time.Sleep(time.Millisecond)
		}
	}
	wantFetchThenHit(t, p, "upstream")
}
