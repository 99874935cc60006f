package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A Load is calls of the guard at a steady rate, each made when its time has
// come, whether those before it have returned or not.
type Load struct {
	Key       string
	PerSecond int
	For       time.Duration
	WarmUp    time.Duration // calls made before are not counted
	Fetch     Fetch
}

// Loaded sums up the calls of a Load.
type Loaded struct {
	Calls   int
	Sources map[string]int // as of guard.Source; calls that got a value
	Errors  map[string]int // by text
	Seen    map[string]Seen
	// Latency has the time from each call to its return, sorted.
	Latency []time.Duration
}

// Seen is when a value was returned.
type Seen struct {
	N                   int
	FirstCall, LastCall time.Time // of the calls that returned it
}

// Quantile returns the latency that a share q of the calls did not exceed.
func (l *Loaded) Quantile(q float64) time.Duration {
	if len(l.Latency) == 0 {
		return 0
	}
	return l.Latency[min(int(q*float64(len(l.Latency))), len(l.Latency)-1)]
}

func (c *child) load(l *Load) Loaded {
	sum := Loaded{Sources: map[string]int{}, Errors: map[string]int{}, Seen: map[string]Seen{}}
	var mu sync.Mutex // guards sum
	var calls sync.WaitGroup
	interval := time.Second / time.Duration(l.PerSecond)
	start := time.Now()
	for due := time.Duration(0); due < l.For; due += interval {
		time.Sleep(time.Until(start.Add(due)))
		counts := due >= l.WarmUp
		calls.Go(func() {
			called := time.Now()
			res, err := c.guard.Load(context.Background(), l.Key, func(ctx context.Context, f *guard.Fill[string]) (string, error) {
				return c.fetch(ctx, l.Key, f, &l.Fetch)
			})
			took := time.Since(called)
			if !counts {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			sum.add(called, took, res, err)
		})
	}
	calls.Wait()
	slices.Sort(sum.Latency)
	return sum
}

func (l *Loaded) add(called time.Time, took time.Duration, res guard.Result[string], err error) {
	l.Calls++
	l.Latency = append(l.Latency, took)
	if err != nil {
		l.Errors[err.Error()]++
		return
	}
	l.Sources[res.Source.String()]++
	value := excerpt(res.Value)
	s := l.Seen[value]
	if s.N == 0 || called.Before(s.FirstCall) {
		s.FirstCall = called
	}
	if called.After(s.LastCall) {
		s.LastCall = called
	}
	s.N++
	l.Seen[value] = s
}
