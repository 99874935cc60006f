package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stampedeguard/stampede/bench/peer"
)

// names are the keys of an order: Key itself, or Keys of them.
func (c *child) names(o Order) []string {
	if o.Keys == 0 {
		return []string{o.Key}
	}
	names := make([]string, o.Keys)
	for i := range names {
		names[i] = o.Key + ":" + strconv.Itoa(i)
	}
	return names
}

// preset stores all keys of an order, and then reads them if Order.Read is set.
func (c *child) preset(o Order) error {
	origin := c.origin(o)
	err := c.each(o, func(ctx context.Context, key string) error { return c.fill(ctx, key, origin) })
	if err == nil && o.Read {
		err = c.each(o, func(ctx context.Context, key string) error {
			_, err := c.cache.Get(ctx, key, origin.fetch)
			return err
		})
	}
	return err
}

// each does something with all keys of an order, 32 at once.
func (c *child) each(o Order, do func(ctx context.Context, key string) error) error {
	names := c.names(o)
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		fails = make(chan error, 32)
	)
	for range cap(fails) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(names) {
					return
				}
				ctx, cancel := deadline(o)
				err := do(ctx, names[i])
				cancel()
				if err != nil {
					fails <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-fails:
		return fmt.Errorf("storing the keys: %w", err)
	default:
		return nil
	}
}

func (c *child) fill(ctx context.Context, key string, origin *origin) error {
	if f, ok := c.cache.(peer.Filler); ok {
		return f.Fill(ctx, key, origin.value)
	}
	_, err := c.cache.Get(ctx, key, origin.fetch)
	return err
}

// loop measures throughput. With Keys of -1 each call has a key of its own, and
// so is a miss.
func (c *child) loop(o Order) (Event, error) {
	origin := c.origin(o)
	origin.countOnly = true
	ctx, cancel := deadlineOf(o)
	defer cancel()
	pick := c.picker(o)
	workers := make([]worker, o.Callers)
	c.turn(ctx, workers, pick, origin, min(o.For/4, 100*time.Millisecond)) // warm up
	clear(workers)

	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used := cpu()
	r := LoopResult{Took: c.turn(ctx, workers, pick, origin, o.For), CPU: cpu() - used}
	runtime.ReadMemStats(&after)
	r.Allocs = after.Mallocs - before.Mallocs
	var took []time.Duration
	for i := range workers {
		w := &workers[i]
		r.Ops += w.ops
		r.Errors += w.errors
		if w.err != "" {
			r.Err = w.err
		}
		took = append(took, w.took...)
	}
	slices.Sort(took)
	if n := len(took); n > 0 {
		r.P50, r.P99 = took[n/2], took[n*99/100]
	}
	r.Fetches = int(origin.count.Load())
	return Event{Loop: r}, nil
}

type worker struct {
	ops, errors int
	err         string
	took        []time.Duration
}

const sampled = 8 // one call in so many is timed: a near hit is as quick as the clock

// turn has each worker call Get again and again for that long.
func (c *child) turn(ctx context.Context, workers []worker, pick func() func() string, origin *origin, d time.Duration) time.Duration {
	var stop atomic.Bool
	var wg sync.WaitGroup
	start := time.Now()
	for i := range workers {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(ctx) // as a request has
			defer cancel()
			next, fetch := pick(), peer.Fetch(origin.fetch)
			w := worker{took: make([]time.Duration, 0, 1024)}
			for ; !stop.Load(); w.ops++ {
				var from time.Time
				if w.ops%sampled == 0 {
					from = time.Now()
				}
				if _, err := c.cache.Get(ctx, next(), fetch); err != nil {
					w.errors++
					w.err = err.Error()
				}
				if w.ops%sampled == 0 {
					w.took = append(w.took, time.Since(from))
				}
			}
			workers[i] = w
		})
	}
	time.Sleep(d)
	stop.Store(true)
	wg.Wait()
	return time.Since(start)
}

// picker returns a function that gives each worker its own source of keys.
func (c *child) picker(o Order) func() func() string {
	if o.Keys < 0 {
		var n atomic.Int64
		return func() func() string {
			return func() string { return o.Key + ":" + strconv.FormatInt(n.Add(1), 10) }
		}
	}
	names := c.names(o)
	if len(names) == 1 {
		return func() func() string {
			return func() string { return names[0] }
		}
	}
	drawn := drawn(o)
	return func() func() string {
		i := rand.IntN(len(drawn))
		return func() string {
			i = (i + 1) % len(drawn)
			return names[drawn[i]]
		}
	}
}

// drawn are places of keys, drawn before anything is timed: to draw a Zipf number
// takes as long as a near hit.
func drawn(o Order) *[1 << 16]uint32 {
	rng := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	draw := func() uint64 { return rng.Uint64N(uint64(o.Keys)) }
	if o.Zipf {
		draw = rand.NewZipf(rng, 1.1, 1, uint64(o.Keys-1)).Uint64
	}
	drawn := new([1 << 16]uint32)
	for i := range drawn {
		drawn[i] = uint32(draw())
	}
	return drawn
}

// cpu is the user and system time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
