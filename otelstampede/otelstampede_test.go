package otelstampede_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/otelstampede"
)

// A process has a guard, and telemetry of its own.
type process struct {
	*guard.Guard[string]
	spans  *tracetest.InMemoryExporter
	traces *trace.TracerProvider
	reader *metric.ManualReader
}

func newProcess(t *testing.T, store func(cache.Observer) cache.Store, opts otelstampede.Options, change ...func(*guard.Policy)) *process {
	t.Helper()
	p := &process{spans: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader()}
	p.traces = trace.NewTracerProvider(trace.WithSyncer(p.spans))
	opts.MeterProvider, opts.TracerProvider = metric.NewMeterProvider(metric.WithReader(p.reader)), p.traces
	tel, err := otelstampede.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	s := store(tel)
	policy := guard.Policy{TTL: time.Minute, Observer: tel}
	for _, c := range change {
		c(&policy)
	}
	if p.Guard, err = guard.New[string](s, "users", policy); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), s.Close(), tel.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func memory(t *testing.T) func(cache.Observer) cache.Store {
	return func(cache.Observer) cache.Store {
		m, err := cache.NewMemory(cache.MemoryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
}

// request calls f within a span.
func (p *process) request(f func(context.Context)) {
	ctx, span := p.traces.Tracer("test").Start(context.Background(), "request")
	f(ctx)
	span.End()
}

func (p *process) named(name string) (found []tracetest.SpanStub) {
	for _, s := range p.spans.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

func attr(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value.Emit()
		}
	}
	return "none"
}

func TestWaitLinksToFetchInAnotherProcess(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	open := func(o cache.Observer) cache.Store {
		s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "app", Observer: o})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := newProcess(t, open, otelstampede.Options{}), newProcess(t, open, otelstampede.Options{})
	began, end := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		a.request(func(ctx context.Context) {
			_, _ = a.Get(ctx, "k", func(context.Context) (string, error) {
				close(began)
				<-end
				return "v", nil
			})
		})
	})
	<-began
	wg.Go(func() {
		b.request(func(ctx context.Context) {
			if v, err := b.Get(ctx, "k", func(context.Context) (string, error) { return "", errors.New("fetched twice") }); v != "v" {
				t.Errorf("the waiter got %q, error %v", v, err)
			}
		})
	})
	for b.Counters().Leases.Held < 2 { // it asks again when its subscription is confirmed
		time.Sleep(time.Millisecond)
	}
	close(end)
	wg.Wait()

	fetches, waits := a.named("fetch users"), b.named("wait users")
	if len(fetches) != 1 || len(waits) != 1 || len(a.named("wait users"))+len(b.named("fetch users")) != 0 {
		t.Fatalf("spans: %v and %v, want one fetch in the first and one wait in the second", a.spans.GetSpans(), b.spans.GetSpans())
	}
	fetch, wait := fetches[0], waits[0]
	if len(wait.Links) != 1 || wait.Links[0].SpanContext.SpanID() != fetch.SpanContext.SpanID() || wait.Links[0].SpanContext.TraceID() != fetch.SpanContext.TraceID() {
		t.Errorf("the wait links to %+v, want the fetch %+v", wait.Links, fetch.SpanContext)
	}
	if fetch.Parent.SpanID() != a.named("request")[0].SpanContext.SpanID() || wait.Parent.SpanID() != b.named("request")[0].SpanContext.SpanID() {
		t.Error("a span is no child of its request's")
	}
	if attr(fetch, "stampede.fetch.trigger") != "miss" || attr(fetch, "stampede.fetch.outcome") != "value" || attr(wait, "stampede.wait.outcome") != "value" {
		t.Errorf("attributes %v and %v", fetch.Attributes, wait.Attributes)
	}
	if took := wait.EndTime.Sub(wait.StartTime); took < time.Millisecond || took > time.Minute {
		t.Errorf("the wait's span took %v", took)
	}
}

func TestBackgroundFetchIsARootWithALink(t *testing.T) {
	p := newProcess(t, memory(t), otelstampede.Options{}, func(p *guard.Policy) { p.TTL, p.Stale = 20*time.Millisecond, time.Minute })
	_ = p.Set(t.Context(), "k", "v")
	time.Sleep(30 * time.Millisecond)
	refreshed := make(chan struct{})
	p.request(func(ctx context.Context) {
		_, _ = p.Get(ctx, "k", func(context.Context) (string, error) { close(refreshed); return "v2", nil })
	})
	<-refreshed
	for len(p.named("fetch users")) == 0 {
		time.Sleep(time.Millisecond)
	}
	fetch, request := p.named("fetch users")[0], p.named("request")[0]
	if fetch.Parent.IsValid() || len(fetch.Links) != 1 || fetch.Links[0].SpanContext.SpanID() != request.SpanContext.SpanID() {
		t.Errorf("parent %+v, links %+v, want a root that links to the request", fetch.Parent, fetch.Links)
	}
	if attr(request, "stampede.source") != "stale" {
		t.Errorf("the request's attributes are %v, want the source stale", request.Attributes)
	}
}

func TestSpansHaveKeysOnlyOnRequest(t *testing.T) {
	hostile := "k\xff" + strings.Repeat("x", 1000)
	for name, test := range map[string]struct {
		keys, hide bool
		want       string
	}{
		"default":             {want: "none"},
		"on request":          {keys: true, want: "k\uFFFD" + strings.Repeat("x", 198)},
		"never with HideKeys": {keys: true, hide: true, want: "none"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(t, memory(t), otelstampede.Options{Keys: test.keys}, func(p *guard.Policy) { p.HideKeys = test.hide })
			_, _ = p.Get(t.Context(), hostile, func(context.Context) (string, error) { return "", errors.New("no") })
			s := p.named("fetch users")[0]
			if got := attr(s, "stampede.key"); got != test.want {
				t.Errorf("the key is %q, want %q", got, test.want)
			}
			if s.Status.Code != codes.Error || attr(s, "error.type") != "other" {
				t.Errorf("status %v, error.type %s", s.Status, attr(s, "error.type"))
			}
		})
	}
}

func TestErrorTextOfASpanIsValidUTF8(t *testing.T) {
	p := newProcess(t, memory(t), otelstampede.Options{})
	_, _ = p.Get(t.Context(), "k", func(context.Context) (string, error) { return "", errors.New("no row k\xff") })
	if got := p.named("fetch users")[0].Status.Description; got != "no row k\uFFFD" {
		t.Errorf("the text is %q", got)
	}
}

func TestFetchContextHoldsItsSpan(t *testing.T) {
	p := newProcess(t, memory(t), otelstampede.Options{})
	_, _ = p.Get(t.Context(), "k", func(ctx context.Context) (string, error) {
		_, span := p.traces.Tracer("test").Start(ctx, "query")
		span.End()
		return "v", nil
	})
	if query, fetch := p.named("query")[0], p.named("fetch users")[0]; query.Parent.SpanID() != fetch.SpanContext.SpanID() {
		t.Error("the query is no child of the fetch")
	}
}

// value sums up a metric's points that have the attributes.
func (p *process) value(t *testing.T, name string, attrs ...attribute.KeyValue) (sum float64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := p.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	has := func(set attribute.Set) bool {
		return !slices.ContainsFunc(attrs, func(a attribute.KeyValue) bool {
			v, ok := set.Value(a.Key)
			return !ok || v != a.Value
		})
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[float64]:
				for _, point := range data.DataPoints {
					if has(point.Attributes) {
						sum += point.Value
					}
				}
			case metricdata.Sum[int64]:
				for _, point := range data.DataPoints {
					if has(point.Attributes) {
						sum += float64(point.Value)
					}
				}
			case metricdata.Histogram[float64]:
				for _, point := range data.DataPoints {
					if has(point.Attributes) {
						sum += float64(point.Count)
					}
				}
			default:
				t.Fatalf("%s is a %T", name, data)
			}
		}
	}
	return sum
}

func TestMetricsCountCallsAndFetches(t *testing.T) {
	p := newProcess(t, memory(t), otelstampede.Options{})
	fetch := func(context.Context) (string, error) { return "v", nil }
	_, _ = p.Get(t.Context(), "k", fetch)
	_, _ = p.Get(t.Context(), "k", fetch)
	_, _ = p.Get(t.Context(), "bad", func(context.Context) (string, error) { return "", context.DeadlineExceeded })
	_ = p.Delete(t.Context(), "k")
	for _, test := range []struct {
		name string
		is   []attribute.KeyValue
		want float64
	}{
		{"stampede.requests", nil, 3},
		{"stampede.requests", []attribute.KeyValue{attribute.String("stampede.source", "store")}, 1},
		{"stampede.requests", []attribute.KeyValue{attribute.String("stampede.source", "own_fetch"), attribute.String("stampede.guard.name", "users")}, 1},
		{"stampede.requests", []attribute.KeyValue{attribute.String("error.type", "fetch")}, 1},
		{"stampede.fetch.duration", []attribute.KeyValue{attribute.String("stampede.fetch.outcome", "value")}, 1},
		{"stampede.fetch.duration", []attribute.KeyValue{attribute.String("error.type", "deadline_exceeded")}, 1},
		{"stampede.entry.size", nil, 1},
		{"stampede.lease.requests", []attribute.KeyValue{attribute.String("stampede.lease.answer", "granted")}, 2},
		{"stampede.invalidations", []attribute.KeyValue{attribute.String("stampede.operation", "delete")}, 1},
		{"stampede.fetch.active", nil, 0},
	} {
		if got := p.value(t, test.name, test.is...); got != test.want {
			t.Errorf("%s%v is %v, want %v", test.name, test.is, got, test.want)
		}
	}
}

func TestCountersSurviveTheirGuard(t *testing.T) {
	p := newProcess(t, memory(t), otelstampede.Options{})
	_, _ = p.Get(t.Context(), "k", func(context.Context) (string, error) { return "v", nil })
	_ = p.Close()
	if got := p.value(t, "stampede.requests"); got != 1 {
		t.Errorf("%v requests after the guard was closed, want 1", got)
	}
}
