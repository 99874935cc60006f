// Package stampede_test has the benchmarks of the whole library against a real
// redis-server on loopback, each beside its baseline in the same run:
//
//	make bench
//
// Compare a benchmark's ns/op with its baseline's, not with another machine's.
// "ratio" is reported where one benchmark times both in turn.
package stampede_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// many keys, and a value of 1 KiB.
const many = 1000

var value = make([]byte, 1024)

var errNotStored = errors.New("a warm key was fetched")

type bench struct {
	client *redis.Client
	guard  *guard.Guard[[]byte]
}

func newBench(b *testing.B) *bench {
	b.Helper()
	server := redistest.RunStandalone(b, redistest.StandaloneConfig{})
	client := server.Client()
	g := newGuard[[]byte](b, client)
	for i := range many {
		if err := errors.Join(g.Set(b.Context(), key(i), value), client.Set(b.Context(), key(i), value, 0).Err()); err != nil {
			b.Fatal(err)
		}
	}
	return &bench{client, g}
}

// newGuard is a guard on a store of its own.
func newGuard[V any](b *testing.B, client *redis.Client) *guard.Guard[V] {
	// A machine that stalls must not turn a benchmark of Redis into one without.
	return newGuardOf[V](b, client, guard.Policy{TTL: time.Hour, FailClosed: true})
}

func newGuardOf[V any](b *testing.B, client *redis.Client, p guard.Policy) *guard.Guard[V] {
	b.Helper()
	store, err := cache.NewRedis(client, cache.Options{Namespace: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	g, err := guard.New[V](store, "g", p)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = g.Close() })
	return g
}

func key(i int) string { return "k" + strconv.Itoa(i) }

// raw is the baseline: a plain GET of the same bytes.
func (s *bench) raw(ctx context.Context, key string) error {
	return s.client.Get(ctx, key).Err()
}

// warm is a Get of a key that is stored and fresh.
func (s *bench) warm(ctx context.Context, key string) error { return warm(ctx, s.guard, key) }

func warm(ctx context.Context, g *guard.Guard[[]byte], key string) error {
	_, err := g.Get(ctx, key, func(context.Context) ([]byte, error) { return nil, errNotStored })
	return err
}

// BenchmarkWarmKey compares Get of a stored, fresh value with a plain GET.
func BenchmarkWarmKey(b *testing.B) {
	s := newBench(b)
	for _, callers := range []int{1, 64, 512} {
		for _, keys := range []int{1, many} {
			name := fmt.Sprintf("callers=%d/keys=%d/", callers, keys)
			b.Run(name+"baseline=GET", func(b *testing.B) { run(b, callers, keys, s.raw) })
			b.Run(name+"Get", func(b *testing.B) { run(b, callers, keys, s.warm) })
		}
	}
}

// BenchmarkLoneGet compares them as [BenchmarkWarmKey] does for one caller, but in turn,
// with values of several sizes: ratio is that of the medians of calls in a row,
// ratio-alone of those that alternate.
func BenchmarkLoneGet(b *testing.B) {
	s := newBench(b)
	for _, size := range []int{100, 1 << 10, 64 << 10} {
		b.Run(fmt.Sprint("bytes=", size), func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			k, v := fmt.Sprint("of ", size), make([]byte, size)
			if err := errors.Join(s.guard.Set(ctx, k, v), s.client.Set(ctx, k, v, 0).Err()); err != nil {
				b.Fatal(err)
			}
			inRow, alone := inTurn(b, func() error { return s.raw(ctx, k) }, func() error { return s.warm(ctx, k) })
			b.ReportMetric(inRow[0], "ns/GET")
			b.ReportMetric(inRow[1], "ns/Get")
			b.ReportMetric(inRow[1]/inRow[0], "ratio")
			b.ReportMetric(alone[1]/alone[0], "ratio-alone")
		})
	}
}

// inTurn makes the calls in turn, some at a time and then each for itself, and returns
// how long they take: the medians, in nanoseconds. In a row, a call finds its threads,
// the processor's caches and the garbage as another one like it has left them, as in a
// program that makes such calls. For itself, it pays for the state that the others left.
func inTurn(b *testing.B, calls ...func() error) (inRow, alone []float64) {
	b.Helper()
	const row = 20
	took := make([][]float64, 2*len(calls))
	timed := func(kind int, call func() error) {
		start := time.Now()
		if err := call(); err != nil {
			b.Fatal(err)
		}
		took[kind] = append(took[kind], float64(time.Since(start).Nanoseconds()))
	}
	for b.Loop() {
		for i, call := range calls {
			for range row {
				timed(i, call)
			}
		}
		for range row {
			for i, call := range calls {
				timed(len(calls)+i, call)
			}
		}
	}
	median := make([]float64, len(took))
	for i := range took {
		slices.Sort(took[i])
		median[i] = took[i][len(took[i])/2]
	}
	return median[:len(calls)], median[len(calls):]
}

// BenchmarkReserve compares warm calls of a guard with the default reserve with those of one
// without, in turn: ratio is that of the medians.
func BenchmarkReserve(b *testing.B) {
	client := redistest.RunStandalone(b, redistest.StandaloneConfig{}).Client()
	for name, near := range map[string]guard.Near{"Redis": {}, "near": {MaxEntries: 2 * many, TTL: time.Hour}} {
		off := guard.Policy{TTL: time.Hour, Beta: guard.Off, Near: near}
		on := off
		off.Reserve.MaxBytes = guard.Off
		without, with := newGuardOf[[]byte](b, client, off), newGuardOf[[]byte](b, client, on)
		for i := range many {
			for range 2 {
				if err := errors.Join(with.Set(b.Context(), key(i), value), warm(b.Context(), with, key(i)), warm(b.Context(), without, key(i))); err != nil {
					b.Fatal(err)
				}
			}
		}
		for _, callers := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
				calls := func(g *guard.Guard[[]byte]) func() error {
					return func() error { return together(b.Context(), callers, g) }
				}
				inRow, _ := inTurn(b, calls(without), calls(with))
				b.ReportMetric(inRow[0]/float64(20*callers), "ns/without")
				b.ReportMetric(inRow[1]/float64(20*callers), "ns/with")
				b.ReportMetric(inRow[1]/inRow[0], "ratio")
			})
		}
	}
}

// together makes 20 warm calls for each of so many callers of one key.
func together(ctx context.Context, callers int, g *guard.Guard[[]byte]) error {
	errs := make(chan error, callers)
	for range callers {
		go func() {
			var err error
			for i := 0; i < 20 && err == nil; i++ {
				err = warm(ctx, g, key(0))
			}
			errs <- err
		}()
	}
	var err error
	for range callers {
		err = errors.Join(err, <-errs)
	}
	return err
}

// BenchmarkTaggedKey compares three reads: Get of a stored, fresh value with tags, Get of
// one without tags, and a plain GET. The records of tags are looked up with each read.
func BenchmarkTaggedKey(b *testing.B) {
	s := newBench(b)
	tags := map[int][]string{1: {"all"}, 4: {"all", "red", "round", "new"}}
	for i := range many {
		for n, of := range tags {
			if err := s.guard.Set(b.Context(), fmt.Sprint("tags", n, key(i)), value, of...); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, callers := range []int{1, 512} {
		name := fmt.Sprintf("callers=%d/", callers)
		b.Run(name+"baseline=GET", func(b *testing.B) { run(b, callers, many, s.raw) })
		b.Run(name+"tags=0", func(b *testing.B) { run(b, callers, many, s.warm) })
		for _, n := range []int{1, 4} {
			b.Run(fmt.Sprintf("%stags=%d", name, n), func(b *testing.B) {
				run(b, callers, many, func(ctx context.Context, key string) error { return s.warm(ctx, fmt.Sprint("tags", n, key)) })
			})
		}
	}
}

// BenchmarkDeleteTag shows that the cost of a deletion doesn't depend on how many
// values carry the tag.
func BenchmarkDeleteTag(b *testing.B) {
	s := newBench(b)
	carriers := 0
	for _, n := range []int{0, 1000, 10_000} {
		for ; carriers < n; carriers++ {
			if err := s.guard.Set(b.Context(), fmt.Sprint("carrier", carriers), value, "t"); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprintf("carriers=%d", n), func(b *testing.B) {
			for b.Loop() {
				if err := s.guard.DeleteTag(b.Context(), "t"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// run has the callers do b.N operations between them.
func run(b *testing.B, callers, keys int, do func(context.Context, string) error) {
	b.ReportAllocs()
	names := make([]string, keys)
	for i := range names {
		names[i] = key(i)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(b.Context()) // as a request has
			defer cancel()
			rng := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
			for left.Add(-1) >= 0 {
				if err := do(ctx, names[rng.IntN(keys)]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkMiss compares a Get that has to fetch (nothing) and store with
// cache-aside by hand: GET, SET. A miss among misses is two round trips, both of
// them scripts; see docs/protocol.md.
func BenchmarkMiss(b *testing.B) {
	s := newBench(b)
	for _, callers := range []int{1, 64} {
		name := fmt.Sprintf("callers=%d/", callers)
		var n atomic.Int64
		b.Run(name+"baseline=GET+SET", func(b *testing.B) {
			run(b, callers, 1, func(ctx context.Context, _ string) error {
				k := fmt.Sprintf("miss:%d:%d", callers, n.Add(1))
				if err := s.client.Get(ctx, k).Err(); !errors.Is(err, redis.Nil) {
					return fmt.Errorf("not a miss: %w", err)
				}
				return s.client.Set(ctx, k, value, time.Minute).Err()
			})
		})
		b.Run(name+"Get", func(b *testing.B) {
			run(b, callers, 1, func(ctx context.Context, _ string) error {
				_, err := s.guard.Get(ctx, fmt.Sprintf("miss:%d:%d", callers, n.Add(1)), func(context.Context) ([]byte, error) { return value, nil })
				return err
			})
		})
	}
}

// BenchmarkWakeUp measures, from the end of a fetch in another process, how long
// until a waiter has the value; the baseline is a message over Redis's pub/sub.
func BenchmarkWakeUp(b *testing.B) {
	s := newBench(b)
	b.Run("baseline=PUBLISH", func(b *testing.B) {
		sub := s.client.Subscribe(b.Context(), "ch")
		defer sub.Close()
		ch := sub.Channel()
		for b.Loop() {
			if err := s.client.Publish(b.Context(), "ch", value).Err(); err != nil {
				b.Fatal(err)
			}
			<-ch
		}
	})
	b.Run("waiter", func(b *testing.B) {
		other, err := cache.NewRedis(s.client, cache.Options{Namespace: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		defer other.Close()
		waiting := &waits{}
		waiter, err := guard.New[[]byte](other, "g", guard.Policy{TTL: time.Hour, Observer: waiting})
		if err != nil {
			b.Fatal(err)
		}
		defer waiter.Close()
		var total time.Duration
		for n := 0; b.Loop(); n++ {
			k := "wake:" + strconv.Itoa(n)
			waiting.began = make(chan struct{}, 1)
			started, end := make(chan struct{}), make(chan struct{})
			var ended time.Time
			go func() {
				_, _ = s.guard.Get(b.Context(), k, func(context.Context) ([]byte, error) {
					close(started)
					<-end
					ended = time.Now()
					return value, nil
				})
			}()
			<-started
			got := make(chan time.Time)
			go func() {
				_, err := waiter.Get(b.Context(), k, func(context.Context) ([]byte, error) { return nil, errNotStored })
				if err != nil {
					b.Error(err)
				}
				got <- time.Now()
			}()
			<-waiting.began
			time.Sleep(2 * time.Millisecond) // until its subscription is confirmed
			close(end)
			at := <-got
			total += at.Sub(ended)
		}
		// ns/op here holds the setting up; this is the wake-up alone.
		b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "ns/wake-up")
	})
}

// waits is told when a waiter begins to wait.
type waits struct{ began chan struct{} }

func (w *waits) Observe(e cache.Event) {
	if e.Kind == cache.WaitBegan {
		w.began <- struct{}{}
	}
}

// BenchmarkObserver shows the cost of an observer, and that no observer costs
// nothing: the same misses on the memory store.
func BenchmarkObserver(b *testing.B) {
	for name, observer := range map[string]cache.Observer{"off": nil, "on": nobody{}} {
		b.Run(name, func(b *testing.B) {
			store, err := cache.NewMemory(cache.MemoryOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer store.Close()
			g, err := guard.New[[]byte](store, "g", guard.Policy{TTL: time.Hour, Observer: observer})
			if err != nil {
				b.Fatal(err)
			}
			defer g.Close()
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				if _, err := g.Get(b.Context(), strconv.Itoa(n), func(context.Context) ([]byte, error) { return value, nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type nobody struct{}

func (nobody) Observe(cache.Event) {}

// BenchmarkNearHit compares a Get from the near cache with the bare cache under
// it: otter's GetIfPresent, on one and on all processors.
func BenchmarkNearHit(b *testing.B) {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	g, err := guard.New[[]byte](store, "g", guard.Policy{
		TTL: time.Hour, Beta: guard.Off, Near: guard.Near{MaxEntries: 2 * many, TTL: time.Hour},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	bare := otter.Must(&otter.Options[string, *[]byte]{
		MaximumSize: 2 * many, ExpiryCalculator: otter.ExpiryWriting[string, *[]byte](time.Hour),
	})
	defer bare.StopAllGoroutines()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	fetch := func(context.Context) ([]byte, error) { return value, nil }
	names := make([]string, many)
	for i := range names {
		names[i] = key(i)
		bare.Set(names[i], &value)
		if _, err := g.Get(ctx, names[i], fetch); err != nil {
			b.Fatal(err)
		}
	}
	lookups := []struct {
		name string
		get  func(string) bool
	}{
		{"baseline=otter", func(k string) bool { _, ok := bare.GetIfPresent(k); return ok }},
		{"Get", func(k string) bool { v, err := g.Get(ctx, k, fetch); return err == nil && v != nil }},
	}
	for _, l := range lookups {
		b.Run("procs=1/"+l.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if !l.get(names[i%many]) {
					b.Fatal("a miss")
				}
			}
		})
		b.Run("procs=all/"+l.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(many); pb.Next(); i++ {
					if !l.get(names[i%many]) {
						b.Error("a miss")
						return
					}
				}
			})
		})
	}
}

// quote is a small struct, of about 100 bytes encoded.
type quote struct {
	Pair, Venue, Note string
	Bid, Ask          float64
	At                int64
}

// BenchmarkGetManyWarm compares GetMany of a thousand stored, fresh keys with an
// MGET of as many values of the same size, in turn, and with an MGET followed by the
// same codec. ratio and ratio-decoded compare the medians of calls in a row,
// ratio-alone and ratio-decoded-alone those of calls that alternate.
func BenchmarkGetManyWarm(b *testing.B) {
	b.Run("string", func(b *testing.B) {
		getManyWarm(b, func(int) string { return string(value[:100]) })
	})
	b.Run("bytes", func(b *testing.B) {
		getManyWarm(b, func(int) []byte { return value[:100] })
	})
	b.Run("struct", func(b *testing.B) {
		getManyWarm(b, func(i int) quote {
			return quote{"EURUSD", "somewhere", "as of close", 1.0842, 1.0844, int64(i)}
		})
	})
}

func getManyWarm[V any](b *testing.B, value func(i int) V) {
	client := redistest.RunStandalone(b, redistest.StandaloneConfig{}).Client()
	g := newGuard[V](b, client)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	keys := make([]string, many)
	for i := range keys {
		keys[i] = key(i)
		payload, err := cache.CodecFor[V]().Marshal(value(i))
		if err := errors.Join(err, g.Set(ctx, keys[i], value(i)), client.Set(ctx, keys[i], payload, 0).Err()); err != nil {
			b.Fatal(err)
		}
	}
	never := func(context.Context, []string) (map[string]V, error) { return nil, errNotStored }
	codec := cache.CodecFor[V]()
	mget := func() error { return client.MGet(ctx, keys...).Err() }
	decoded := func() error {
		payloads, err := client.MGet(ctx, keys...).Result()
		if err != nil {
			return err
		}
		got := make([]V, len(payloads))
		for i, p := range payloads {
			if err := codec.Unmarshal([]byte(p.(string)), &got[i]); err != nil {
				return err
			}
		}
		return nil
	}
	warm := func() error {
		got, err := g.GetMany(ctx, keys, never)
		if err == nil && len(got) != many {
			err = fmt.Errorf("%d values", len(got))
		}
		return err
	}
	inRow, alone := inTurn(b, mget, decoded, warm)
	b.ReportMetric(inRow[0], "ns/MGET")
	b.ReportMetric(inRow[1], "ns/MGET-decoded")
	b.ReportMetric(inRow[2], "ns/GetMany")
	b.ReportMetric(inRow[2]/inRow[0], "ratio")
	b.ReportMetric(inRow[2]/inRow[1], "ratio-decoded")
	b.ReportMetric(alone[2]/alone[0], "ratio-alone")
	b.ReportMetric(alone[2]/alone[1], "ratio-decoded-alone")
}

// BenchmarkGetManyCold fetches (nothing) and stores a thousand keys in one call. It
// counts fetches and round trips.
func BenchmarkGetManyCold(b *testing.B) {
	client := redistest.RunStandalone(b, redistest.StandaloneConfig{}).Client()
	g := newGuard[[]byte](b, client)
	sent := &redistest.Counter{}
	client.AddHook(sent)
	fetches, n := 0, 0
	fetch := func(_ context.Context, keys []string) (map[string][]byte, error) {
		fetches++
		got := make(map[string][]byte, len(keys))
		for _, k := range keys {
			got[k] = value[:100]
		}
		return got, nil
	}
	for b.Loop() {
		n++
		keys := make([]string, many)
		for i := range keys {
			keys[i] = "cold:" + strconv.Itoa(n) + ":" + strconv.Itoa(i)
		}
		if got, err := g.GetMany(b.Context(), keys, fetch); err != nil || len(got) != many {
			b.Fatal(len(got), err)
		}
	}
	b.ReportMetric(float64(fetches)/float64(n), "fetches/op")
	b.ReportMetric(float64(sent.Trips())/float64(n), "trips/op")
}
