package guard_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

type requestKey struct{}

type attachment struct {
	name string
	self any
}

// A witness keeps the events of a guard with the request of their context. It makes a
// span of each fetch.
type witness struct {
	mu       sync.Mutex
	events   []cache.Event
	requests []any
	trace    cache.TraceContext
	ended    []cache.Event
	attached []attachment
	detached int
	hits     []guard.Source
}

func (o *witness) Observe(cache.Event) { panic("a guard calls ObserveContext") }

func (o *witness) ObserveContext(ctx context.Context, ev cache.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, ev)
	o.requests = append(o.requests, ctx.Value(requestKey{}))
}

func (o *witness) StartFetch(ctx context.Context, _ cache.Event) (context.Context, cache.TraceContext, func(cache.Event)) {
	return context.WithValue(ctx, spanKey{}, o.trace), o.trace, func(ev cache.Event) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.ended = append(o.ended, ev)
	}
}

func (o *witness) Attach(name string, component any) func() {
	o.attached = append(o.attached, attachment{name, component})
	return func() { o.detached++ }
}

func (o *witness) ObserveHit(_ context.Context, from guard.Source, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hits = append(o.hits, from)
}

type spanKey struct{}

// of returns the events of that kind, and the requests that they are about.
func (o *witness) of(kind cache.EventKind) (events []cache.Event, requests []any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, ev := range o.events {
		if ev.Kind == kind {
			events, requests = append(events, ev), append(requests, o.requests[i])
		}
	}
	return events, requests
}

func TestEventsCarryTheRequestsContext(t *testing.T) {
	inWorlds(t, func(w *world) {
		o := &witness{}
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Observer = o }))[0]
		ctx := context.WithValue(w.Context(), requestKey{}, "r1")
		if _, err := g.Get(ctx, "k", func(context.Context) (string, error) { return "v", nil }); err != nil {
			w.Fatal(err)
		}
		for _, kind := range []cache.EventKind{cache.LeaseGranted, cache.FetchStarted, cache.FetchDone, cache.FillStored} {
			if _, requests := o.of(kind); len(requests) != 1 || requests[0] != "r1" {
				w.Errorf("requests of %s: %v, want r1", kind, requests)
			}
		}
		if err := g.Delete(ctx, "k"); err != nil {
			w.Fatal(err)
		}
		events, requests := o.of(cache.KeyChanged)
		if len(events) != 1 || events[0].Operation != "delete" || events[0].Key != "k" || requests[0] != "r1" {
			w.Errorf("changes %+v of %v, want a delete of k by r1", events, requests)
		}
	})
}

func TestFetchEventsTellTriggerAndOutcome(t *testing.T) {
	inMemory(t, func(w *world) {
		o := &witness{}
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Observer, p.Stale, p.Negative = o, time.Hour, guard.Off }))[0]
		answer := func(v string, err error) fetcher {
			return func(context.Context) (string, error) { return v, err }
		}
		private := func(_ context.Context, f *guard.Fill[string]) (string, error) {
			f.Private = true
			return "v", nil
		}
		_, _ = g.Get(w.Context(), "k", answer("v", nil))
		_, _ = g.Get(w.Context(), "k", answer("v", nil), guard.MaxAge(0))
		time.Sleep(2 * time.Minute)
		_, _ = g.Get(w.Context(), "k", answer("v", errors.New("no")))
		synctest.Wait()
		_, _ = g.Get(w.Context(), "none", answer("", guard.ErrNotFound))
		_, _ = g.Load(w.Context(), "own", private)
		want := map[cache.EventKind][][2]string{
			cache.FetchDone: {
				{telemetry.TriggerMiss, telemetry.OutcomeValue}, {telemetry.TriggerRefresh, telemetry.OutcomeValue}, {telemetry.TriggerMiss, telemetry.OutcomePrivate},
			},
			cache.FetchFailed:   {{telemetry.TriggerStale, telemetry.OutcomeError}},
			cache.FetchNotFound: {{telemetry.TriggerMiss, telemetry.OutcomeNotFound}},
		}
		for kind, want := range want {
			var got [][2]string
			events, _ := o.of(kind)
			for _, ev := range events {
				got = append(got, [2]string{ev.Trigger, ev.Outcome})
			}
			if !slices.Equal(got, want) {
				w.Errorf("%s told of %v, want %v", kind, got, want)
			}
		}
		if len(o.ended) != 5 {
			w.Errorf("%d spans of fetches ended, want 5", len(o.ended))
		}
		if events, _ := o.of(cache.StaleServed); len(events) != 1 || events[0].Reason != telemetry.ReasonRefreshing {
			w.Errorf("stale values served: %+v, want one, refreshing", events)
		}
	})
}

func TestWaitersLearnTheFetchsTraceContext(t *testing.T) {
	inWorlds(t, func(w *world) {
		trace := cache.TraceContext{0: 1, 16: 2, 24: 1}
		leader, waiter := &witness{trace: trace}, &witness{}
		a := w.guard(w.open(), policy(func(p *guard.Policy) { p.Observer = leader }))
		b := w.guard(w.open(), policy(func(p *guard.Policy) { p.Observer = waiter }))
		time.Sleep(time.Second) // fake: until the subscriptions are live
		for _, fail := range []error{nil, errors.New("no")} {
			began, end := make(chan struct{}), make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = a.Get(w.Context(), "k", func(ctx context.Context) (string, error) {
					if got := ctx.Value(spanKey{}); got != trace {
						w.Errorf("the fetch runs in span %v, want %v", got, trace)
					}
					close(began)
					<-end
					return "v", fail
				})
			})
			<-began
			for _, g := range []*guard.Guard[string]{a, b} {
				wg.Go(func() { _, _ = g.Get(w.Context(), "k", never) })
			}
			time.Sleep(time.Second) // fake: both wait
			close(end)
			wg.Wait()
			if err := a.Delete(w.Context(), "k"); err != nil {
				w.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		for name, o := range map[string]*witness{"the leader's process": leader, "the other process": waiter} {
			events, _ := o.of(cache.CallWaited)
			if len(events) != 2 || events[0].Trace != trace || events[1].Trace != trace ||
				events[0].Outcome != telemetry.OutcomeValue || events[1].Outcome != telemetry.OutcomeFailure || events[0].Duration < time.Second {
				w.Errorf("waits in %s: %+v, want a value and a failure, of %v", name, events, trace)
			}
		}
	})
}

func TestFetchesAreLabelledInProfiles(t *testing.T) {
	inMemory(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		_, _ = g.Get(w.Context(), "k", func(ctx context.Context) (string, error) {
			if name, _ := pprof.Label(ctx, "stampede.guard"); name != "g" {
				w.Errorf("the fetch's label is %q, want g", name)
			}
			return "v", nil
		})
	})
}

type contextHandler struct {
	slog.Handler
	requests chan any
}

func (h contextHandler) Handle(ctx context.Context, _ slog.Record) error {
	h.requests <- ctx.Value(requestKey{})
	return nil
}

func (h contextHandler) Enabled(context.Context, slog.Level) bool { return true }

func TestLogHasTheRequestsContext(t *testing.T) {
	inMemory(t, func(w *world) {
		h := contextHandler{requests: make(chan any, 100)}
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Observer = guard.LogObserver(slog.New(h)) }))[0]
		ctx := context.WithValue(w.Context(), requestKey{}, "r1")
		_, _ = g.Get(ctx, "k", func(context.Context) (string, error) { return "", errors.New("no") })
		if got := <-h.requests; got != "r1" {
			w.Errorf("logged with the request %v, want r1", got)
		}
	})
}

func TestObserversLearnOfGuards(t *testing.T) {
	inMemory(t, func(w *world) {
		o := &witness{}
		g := w.guard(w.open(), policy(func(p *guard.Policy) { p.Observer = cache.Observers(guard.LogObserver(nil), o) }))
		if len(o.attached) != 1 || o.attached[0].name != "g" || o.attached[0].self != any(g) {
			w.Fatalf("attached %+v, want the guard", o.attached)
		}
		_ = g.Close()
		_ = g.Close()
		if o.detached != 1 {
			w.Errorf("detached %d times, want 1", o.detached)
		}
	})
}

func TestHitsAreToldWithTheirSource(t *testing.T) {
	inWorlds(t, func(w *world) {
		o := &witness{}
		g := w.fleet(1, policy(func(p *guard.Policy) {
			p.Observer, p.Near, p.Stale = o, guard.Near{MaxEntries: 10, TTL: 10 * time.Second}, time.Hour
		}))[0]
		for !g.Counters().NearLive {
			time.Sleep(100 * time.Millisecond) // fake
		}
		_ = g.Set(w.Context(), "k", "v")
		time.Sleep(time.Second) // fake: until this process has heard of it
		for range 2 {           // the second is a near hit
			_ = get(w, g, "k", never)
		}
		time.Sleep(2 * time.Minute)
		_ = get(w, g, "k", func(context.Context) (string, error) { return "v", nil })
		if want := []guard.Source{guard.FromStore, guard.Stale}; !slices.Equal(o.hits, want) {
			w.Errorf("told of hits from %v, want %v", o.hits, want)
		}
	})
}

func TestInFlightListIsBounded(t *testing.T) {
	inMemory(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		var wg sync.WaitGroup
		end := make(chan struct{})
		for i := range 20 {
			wg.Go(func() {
				_, _ = g.Get(w.Context(), string(rune('a'+i)), func(context.Context) (string, error) { <-end; return "v", nil })
			})
		}
		synctest.Wait()
		some, total := g.InFlight(5)
		if len(some) != 5 || total != 20 || some[0].Callers != 1 || some[0].Attempt != 1 {
			w.Errorf("listed %+v of %d, want 5 of 20 with one caller and attempt 1", some, total)
		}
		if s := g.Counters(); s.Fetching != 20 || s.Waiting != 20 || s.Leases.Granted != 20 || s.InFlight != nil {
			w.Errorf("counters %+v, want 20 fetching, waiting and granted", s)
		}
		close(end)
		wg.Wait()
		if s := g.Counters(); s.Fetching != 0 || s.Waiting != 0 {
			w.Errorf("%d fetching, %d waiting after the end", s.Fetching, s.Waiting)
		}
	})
}

func TestLookupsWithoutInvalidationsCountAsBypasses(t *testing.T) {
	inRedis(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Near = guard.Near{MaxEntries: 10} }))[0]
		for !g.Counters().NearLive {
			time.Sleep(100 * time.Millisecond) // fake
		}
		if err := w.server.Stop(); err != nil {
			w.Fatal(err)
		}
		for g.Counters().NearLive {
			time.Sleep(100 * time.Millisecond) // fake
		}
		for range 3 {
			_, _ = g.Get(w.Context(), "never stored", func(context.Context) (string, error) { return "v", nil })
		}
		if n := g.Counters().NearBypasses; n != 3 {
			w.Errorf("%d lookups bypassed the near cache, want 3", n)
		}
	})
}
