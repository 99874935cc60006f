package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/debug"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/otelstampede"
	"github.com/stampedeguard/stampede/promstampede"
)

// everything is all observers joined, with OpenTelemetry's SDK behind them.
func everything(tb testing.TB) cache.Observer {
	tb.Helper()
	traces := sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()))
	metrics := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	tel, err1 := otelstampede.New(otelstampede.Options{TracerProvider: traces, MeterProvider: metrics})
	page, err2 := debug.New(debug.Options{})
	if err := errors.Join(err1, err2); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = errors.Join(tel.Close(), page.Close(), traces.Shutdown(context.Background()), metrics.Shutdown(context.Background()))
	})
	return cache.Observers(tel, promstampede.New(), page)
}

const keys = 1000

func observed(tb testing.TB, store cache.Store, o cache.Observer, near bool) func(context.Context, int) error {
	tb.Helper()
	policy := guard.Policy{TTL: time.Hour, Beta: guard.Off, Observer: o, FailClosed: true}
	if near {
		policy.Near = guard.Near{MaxEntries: 2 * keys, TTL: time.Hour}
	}
	g, err := guard.New[[]byte](store, "g", policy)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = g.Close() })
	names := make([]string, keys)
	fetch := func(context.Context) ([]byte, error) { return make([]byte, 1024), nil }
	get := func(ctx context.Context, i int) error { _, err := g.Get(ctx, names[i%keys], fetch); return err }
	for i := range names {
		names[i] = fmt.Sprintf("k%d", i)
		if err := get(tb.Context(), i); err != nil {
			tb.Fatal(err)
		}
	}
	return get
}

// BenchmarkOverhead compares guards with everything turned on with guards without an
// observer. The two take turns; ratio is that of the fastest rounds, which other work on
// the machine disturbs least, and ratio-median that of the medians.
func BenchmarkOverhead(b *testing.B) {
	memory, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = memory.Close() }()
	server := redistest.RunStandalone(b, redistest.StandaloneConfig{})
	open := func(o cache.Observer) cache.Store {
		client := redis.NewClient(server.Options())
		s, err := cache.NewRedis(client, cache.Options{Namespace: "bench", Observer: o})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close(); _ = client.Close() })
		return s
	}
	far := func(o cache.Observer) func(context.Context, int) error { return observed(b, open(o), o, false) }
	for _, bench := range []struct {
		name    string
		callers int
		round   int // calls of each
		make    func(o cache.Observer) func(context.Context, int) error
	}{
		{"near", 1, 5000, func(o cache.Observer) func(context.Context, int) error { return observed(b, memory, o, true) }},
		{"memory", 1, 2000, func(o cache.Observer) func(context.Context, int) error { return observed(b, memory, o, false) }},
		{"redis", 1, 50, far},
		{"redis-64", 64, 20, far},
		{"redis-512", 512, 5, far},
	} {
		b.Run(bench.name, func(b *testing.B) {
			gets := []func(context.Context, int) error{bench.make(nil), bench.make(everything(b))}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			took := make([][]float64, len(gets))
			for b.Loop() {
				for n, get := range gets {
					start := time.Now()
					if err := together(ctx, bench.callers, bench.round, get); err != nil {
						b.Fatal(err)
					}
					took[n] = append(took[n], float64(time.Since(start))/float64(bench.round*bench.callers))
				}
			}
			for n := range took {
				slices.Sort(took[n])
			}
			mid := len(took[0]) / 2
			b.ReportMetric(took[0][0], "ns/off")
			b.ReportMetric(took[1][0], "ns/on")
			b.ReportMetric(took[1][0]/took[0][0], "ratio")
			b.ReportMetric(took[1][mid]/took[0][mid], "ratio-median")
		})
	}
}

// together has callers make so many calls each, all of the same keys at about the same time.
func together(ctx context.Context, callers, calls int, get func(context.Context, int) error) error {
	errs := make([]error, callers)
	one := func(c int) {
		for i := range calls {
			if err := get(ctx, i); err != nil {
				errs[c] = err
			}
		}
	}
	var wg sync.WaitGroup
	for c := 1; c < callers; c++ {
		wg.Go(func() { one(c) })
	}
	one(0)
	wg.Wait()
	return errors.Join(errs...)
}

func TestNearHitDoesNotAllocateWithEverythingOn(t *testing.T) {
	memory, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = memory.Close() }()
	get := observed(t, memory, everything(t), true)
	if n := testing.AllocsPerRun(1000, func() { _ = get(t.Context(), 1) }); n != 0 {
		t.Errorf("a near hit allocates %v times", n)
	}
}
