package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// An origin serves a fixed number of fetches at once, in the order in which they came. It
// also serves fetches after their callers have given up, as most databases do: that waste
// keeps a system down. The end of each fetch is computed, so that the capacity does not
// depend on how promptly this process runs.
type origin struct {
	workers int
	takes   atomic.Int64
	n       atomic.Int64

	mu   sync.Mutex
	next time.Time // the next fetch is begun then, or later
}

func newOrigin(workers int, takes time.Duration) *origin {
	o := &origin{workers: workers}
	o.takes.Store(int64(takes))
	return o
}

func (o *origin) fetch(ctx context.Context, key string) (string, error) {
	o.n.Add(1)
	takes := time.Duration(o.takes.Load())
	o.mu.Lock()
	begin := time.Now()
	if o.next.After(begin) {
		begin = o.next
	}
	o.next = begin.Add(takes / time.Duration(o.workers))
	o.mu.Unlock()
	select {
	case <-time.After(time.Until(begin.Add(takes))):
		return fmt.Sprintf("%0100d", len(key)), nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// A world is one run: a server, an origin, and the processes.
type world struct {
	cfg    *config
	mode   string
	server *redistest.Server
	origin *origin

	mu      sync.RWMutex
	getters []getter
	clients []*redis.Client

	began time.Time
	calls [600]struct{ made, good atomic.Int64 } // by the second in which they began
	busy  sync.WaitGroup
}

func (w *world) open() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range w.cfg.Processes {
		o := w.server.Options()
		o.PoolSize = 32
		client := redis.NewClient(o)
		w.clients = append(w.clients, client)
		g, err := w.cfg.open(w.mode, client, w.origin.fetch)
		if err != nil {
			return err
		}
		w.getters = append(w.getters, g)
	}
	return nil
}

func (w *world) close() {
	w.mu.Lock()
	getters, clients := w.getters, w.clients
	w.getters, w.clients = nil, nil
	w.mu.Unlock()
	for _, g := range getters {
		_ = g.close()
	}
	for _, c := range clients {
		_ = c.Close()
	}
}

func (w *world) second() int { return int(time.Since(w.began) / time.Second) }

// load makes calls at the rate until ctx ends. It waits for none.
func (w *world) load(ctx context.Context, rate int) {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), 1.00001, 1, uint64(w.cfg.Keys-1))
	next := time.Now()
	for ctx.Err() == nil {
		next = next.Add(time.Duration(rand.ExpFloat64() * float64(time.Second) / float64(rate)))
		if d := time.Until(next); d > time.Millisecond {
			time.Sleep(d)
		}
		key := fmt.Sprint("key", zipf.Uint64())
		w.busy.Go(func() { w.call(ctx, key) })
	}
}

func (w *world) call(ctx context.Context, key string) {
	w.mu.RLock()
	var g getter
	if len(w.getters) > 0 {
		g = w.getters[rand.IntN(len(w.getters))]
	}
	w.mu.RUnlock()
	second := w.second()
	if second >= len(w.calls) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	good := g != nil && g.get(ctx, key) == nil
	w.calls[second].made.Add(1)
	if good {
		w.calls[second].good.Add(1)
	}
}

// goodput is the share of the calls begun in a second that were answered in time, -1 if
// there were none.
func (w *world) goodput(second int) float64 {
	c := &w.calls[second]
	made := c.made.Load()
	if made == 0 {
		return -1
	}
	return math.Round(10000*float64(c.good.Load())/float64(made)) / 10000
}

var allTriggers = []string{"flush", "stop", "slow", "restart"}

// pull carries the trigger out, and returns when it has ended.
func (w *world) pull(ctx context.Context, trigger string) error {
	switch trigger {
	case "flush":
		for range 5 {
			if err := w.server.Client().FlushAll(ctx).Err(); err != nil {
				return err
			}
			time.Sleep(time.Second)
		}
	case "stop":
		if err := w.server.Pause(); err != nil {
			return err
		}
		time.Sleep(w.cfg.Stop)
		return w.server.Resume()
	case "slow":
		w.origin.takes.Store(3 * int64(w.cfg.Fetch))
		time.Sleep(w.cfg.Slow)
		w.origin.takes.Store(int64(w.cfg.Fetch))
	case "restart": // all processes at once, and they find nothing
		w.close()
		if err := w.server.Client().FlushAll(ctx).Err(); err != nil {
			return err
		}
		return w.open()
	default:
		return fmt.Errorf("no such trigger: there are %v", allTriggers)
	}
	return nil
}

const (
	calmFor  = 5    // seconds before the trigger
	atLeast  = 0.99 // goodput that counts as well
	steadily = 3    // seconds in a row
)

// one makes one run.
func (cfg *config) one(ctx context.Context, mode, trigger string, load int) (run result, err error) {
	run = result{Mode: mode, Trigger: trigger, Load: load}
	server, err := redistest.StartStandalone(ctx, redistest.StandaloneConfig{})
	if err != nil {
		return run, err
	}
	defer func() { _ = server.Stop() }()
	w := &world{cfg: cfg, mode: mode, server: server, origin: newOrigin(cfg.Workers, cfg.Fetch)}
	if err := w.open(); err != nil {
		return run, err
	}
	defer w.close()
	if err := w.warm(ctx); err != nil {
		return run, err
	}
	ctx, stop := context.WithCancel(ctx)
	w.began = time.Now()
	var loader sync.WaitGroup
	loader.Go(func() { w.load(ctx, load) })
	defer w.busy.Wait()
	defer loader.Wait()
	defer stop()

	settle := int(cfg.Timeout/time.Second) + 1 // until the calls of a second are over
	time.Sleep(calmFor*time.Second + cfg.Timeout)
	calm := 0.0
	for s := range calmFor {
		calm += w.goodput(s) / calmFor
	}
	run.Before = math.Round(10000*calm) / 10000
	run.Carried = calm >= atLeast
	begin := w.second()
	if err := w.pull(ctx, trigger); err != nil {
		return run, err
	}
	ended := time.Since(w.began)
	first := int(ended/time.Second) + 1 // the first whole second after it
	for s := first; s < first+int(cfg.Watch/time.Second) && ctx.Err() == nil; s++ {
		time.Sleep(time.Until(w.began.Add(time.Duration(s+settle) * time.Second)))
		well := 0
		for s-well >= first && w.goodput(s-well) >= atLeast {
			well++
		}
		if well >= steadily {
			run.Recovered = true
			run.Seconds = s - well + 1 - first
			break
		}
	}
	for s := max(0, begin-calmFor); s <= w.second()-settle; s++ {
		run.Goodput = append(run.Goodput, w.goodput(s))
	}
	run.TriggerAt, run.TriggerEnd = begin-max(0, begin-calmFor), first-max(0, begin-calmFor)
	return run, ctx.Err()
}

// warm has one caller for each place at the origin ask for all keys.
func (w *world) warm(ctx context.Context) error {
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	var next atomic.Int64
	time.Sleep(time.Second) // for the subscriptions
	for range w.cfg.Workers {
		wg.Go(func() {
			for n := next.Add(1) - 1; n < int64(w.cfg.Keys); n = next.Add(1) - 1 {
				for _, g := range w.getters { // the first fetches
					if err := g.get(ctx, fmt.Sprint("key", n)); err != nil {
						failed.Store(&err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return fmt.Errorf("filling the cache: %w", *err)
	}
	return nil
}
