package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
)

type report struct {
	Modes []modeReport `json:"modes"`
}

type modeReport struct {
	Name   string      `json:"name"`
	Before phaseReport `json:"before"`
	During phaseReport `json:"during"`
	After  phaseReport `json:"after"`
	// Most fetches of one key by one store during the outage.
	MostPerKey int `json:"most_fetches_per_key_and_store"`
}

type phaseReport struct {
	CallsPerS    float64 `json:"calls_per_s"`
	P50          float64 `json:"p50_ms"`
	P99          float64 `json:"p99_ms"`
	FirstP99     float64 `json:"first_second_p99_ms"`
	FetchesPerS  float64 `json:"fetches_per_s"`
	Fetches      int     `json:"fetches"`
	FetchesAtMax int     `json:"max_fetches_at_once"`
	Errors       int     `json:"errors"`
}

// An origin is where the values come from. It counts its fetches.
type origin struct {
	takes   time.Duration
	n       atomic.Int64
	running atomic.Int64
	most    atomic.Int64

	mu  sync.Mutex
	per map[string]int // by store and key
}

func (o *origin) fetchFor(store int) fetchFunc {
	return func(ctx context.Context, key string) (string, error) {
		o.n.Add(1)
		now := o.running.Add(1)
		defer o.running.Add(-1)
		for m := o.most.Load(); now > m && !o.most.CompareAndSwap(m, now); m = o.most.Load() {
		}
		o.mu.Lock()
		o.per[fmt.Sprint(store, " ", key)]++
		o.mu.Unlock()
		select {
		case <-time.After(o.takes):
			return fmt.Sprintf("%0100d", len(key)), nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// reset starts counting anew and returns the counts so far.
func (o *origin) reset() (n, most, perKey int) {
	n, most = int(o.n.Swap(0)), int(o.most.Swap(o.running.Load()))
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range o.per {
		perKey = max(perKey, k)
	}
	o.per = map[string]int{}
	return n, most, perKey
}

// A call is one that has ended.
type call struct {
	ended  time.Time
	took   time.Duration
	failed bool
}

// A caller makes calls, one after the other.
type caller struct {
	mu    sync.Mutex
	calls []call
}

func (c *caller) run(ctx context.Context, cfg *config, g getter) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	zipf := rand.NewZipf(rng, 1.01, 1, uint64(cfg.keys-1))
	for ctx.Err() == nil {
		start := time.Now()
		err := g.get(ctx, fmt.Sprint("key", zipf.Uint64()))
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		c.mu.Lock()
		c.calls = append(c.calls, call{now, now.Sub(start), err != nil})
		c.mu.Unlock()
		select {
		case <-time.After(cfg.think*9/10 + time.Duration(rng.Int64N(int64(cfg.think/5)+1))):
		case <-ctx.Done():
		}
	}
}

// show runs one cache through the outage.
func (cfg *config) show(ctx context.Context, mode string, progress io.Writer) (modeReport, error) {
	r := modeReport{Name: mode}
	srv, err := cfg.startServer(ctx)
	if err != nil {
		return r, err
	}
	defer func() { _ = srv.stop() }()
	o := &origin{takes: cfg.fetch, per: map[string]int{}}
	getters := make([]getter, cfg.stores)
	for i := range getters {
		options := *srv.options
		options.PoolSize = 64
		client := redis.NewClient(&options)
		defer client.Close()
		if getters[i], err = cfg.open(mode, client, o.fetchFor(i)); err != nil {
			return r, err
		}
		defer func() { _ = getters[i].close() }()
	}
	time.Sleep(time.Second) // for the subscriptions
	if err := cfg.warm(ctx, getters); err != nil {
		return r, err
	}
	o.reset()
	ctx, stop := context.WithCancel(ctx)
	all := make([]*caller, cfg.stores*cfg.callers)
	var wg sync.WaitGroup
	for i := range all {
		all[i] = &caller{}
		wg.Go(func() { all[i].run(ctx, cfg, getters[i%len(getters)]) })
	}
	defer wg.Wait()
	defer stop()
	phase := func(name string, d time.Duration, into *phaseReport) {
		from := time.Now()
		for from.Add(d).After(time.Now()) && ctx.Err() == nil {
			second := time.Now()
			n := o.n.Load()
			time.Sleep(min(time.Second, time.Until(from.Add(d))))
			s := measure(all, second, time.Now())
			fmt.Fprintf(progress, "%-17s %-7s %7.0f calls/s  p50 %7.2f ms  p99 %7.2f ms  %6.0f fetches/s  %d errors\n",
				mode, name, s.CallsPerS, s.P50, s.P99, float64(o.n.Load()-n)/time.Since(second).Seconds(), s.Errors)
		}
		to := time.Now()
		*into = measure(all, from, to)
		into.FirstP99 = measure(all, from, from.Add(time.Second)).P99
		perKey := 0
		into.Fetches, into.FetchesAtMax, perKey = o.reset()
		into.FetchesPerS = float64(into.Fetches) / to.Sub(from).Seconds()
		if name == "during" {
			r.MostPerKey = perKey
		}
	}
	phase("before", cfg.before, &r.Before)
	if err := srv.away(); err != nil {
		return r, err
	}
	phase("during", cfg.during, &r.During)
	if err := srv.back(); err != nil {
		return r, err
	}
	phase("after", cfg.after, &r.After)
	return r, ctx.Err()
}

// warm has every store ask for every key twice.
func (cfg *config) warm(ctx context.Context, getters []getter) error {
	var wg sync.WaitGroup
	errs := make([]error, len(getters)*8)
	for i := range errs {
		wg.Go(func() {
			for n := i / len(getters); n < 2*cfg.keys; n += 8 {
				if err := getters[i%len(getters)].get(ctx, fmt.Sprint("key", n%cfg.keys)); err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// measure looks at the calls that ended in the given time.
func measure(all []*caller, from, to time.Time) phaseReport {
	var took []time.Duration
	r := phaseReport{}
	for _, c := range all {
		c.mu.Lock()
		for i := len(c.calls) - 1; i >= 0 && !c.calls[i].ended.Before(from); i-- {
			if c.calls[i].ended.Before(to) {
				took = append(took, c.calls[i].took)
				if c.calls[i].failed {
					r.Errors++
				}
			}
		}
		c.mu.Unlock()
	}
	if len(took) == 0 {
		return r
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	r.CallsPerS = float64(len(took)) / to.Sub(from).Seconds()
	r.P50, r.P99 = ms(took[len(took)/2]), ms(took[len(took)*99/100])
	return r
}

func (r *report) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mode\tphase\tcalls/s\tp50 ms\tp99 ms\tfetches/s\tat once\terrors\t")
	for _, m := range r.Modes {
		for _, p := range []struct {
			name string
			of   phaseReport
		}{{"before", m.Before}, {"during", m.During}, {"after", m.After}} {
			fmt.Fprintf(w, "%s\t%s\t%.0f\t%.2f\t%.2f\t%.0f\t%d\t%d\t\n", m.Name, p.name, p.of.CallsPerS, p.of.P50, p.of.P99, p.of.FetchesPerS, p.of.FetchesAtMax, p.of.Errors)
		}
	}
	_ = w.Flush()
}
