package fleet

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A returned is the outcome of one caller, and its time.
type returned struct {
	key              string
	value            string
	source           guard.Source
	err              error
	called, returned time.Time
	overrun          time.Duration
}

// get runs the callers of a Get, which are all there before the first calls.
func (c *child) get(g *Get) []Outcome {
	n := max(1, g.Callers)
	all := make([]returned, n)
	start := make(chan struct{})
	var done, ready sync.WaitGroup
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-start
			time.Sleep(g.Spread * time.Duration(i) / time.Duration(max(1, n-1)))
			all[i] = c.caller(g, g.Keys[i%len(g.Keys)])
		})
	}
	ready.Wait()
	time.Sleep(time.Until(g.At))
	close(start)
	done.Wait()
	return group(all)
}

// caller is one call of the guard.
func (c *child) caller(g *Get, key string) returned {
	ctx := context.Background()
	r := returned{key: key, called: time.Now()}
	if g.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, r.called.Add(g.Timeout))
		defer cancel()
	}
	res, err := c.guard.Load(ctx, key, func(ctx context.Context, f *guard.Fill[string]) (string, error) {
		return c.fetch(ctx, key, f, &g.Fetch)
	})
	r.returned = time.Now()
	r.value, r.source, r.err = res.Value, res.Source, err
	if end, ok := ctx.Deadline(); ok {
		r.overrun = max(0, r.returned.Sub(end))
	}
	return r
}

// fetch carries out a Fetch, and reports its times.
func (c *child) fetch(ctx context.Context, key string, f *guard.Fill[string], spec *Fetch) (value string, err error) {
	e := Event{Kind: FetchBegan, At: time.Now(), Key: key, Token: f.IdempotencyKey, Attempt: f.Attempt}
	value = spec.Value
	if value == "" {
		value = e.At.Format(time.RFC3339Nano)
	}
	c.tell(e)
	defer func() {
		end := Event{Kind: FetchEnded, Key: key, Token: f.IdempotencyKey, Attempt: f.Attempt}
		if err != nil {
			end.Err = err.Error()
		}
		c.tell(end)
	}()
	if spec.Hang {
		select {} // the request loop keeps this from being a deadlock
	}
	if err := spec.wait(ctx); err != nil {
		return "", err
	}
	switch {
	case spec.Exit != 0:
		os.Exit(spec.Exit)
	case spec.Panic != "":
		panic(spec.Panic)
	case spec.Fail != "":
		err := fmt.Errorf("the fetch failed: %w", Sentinel(spec.Fail))
		if spec.RetryAfter > 0 {
			err = guard.RetryAfter(err, spec.RetryAfter)
		}
		return "", err
	}
	return value + strings.Repeat(".", max(0, spec.Size-len(value))), nil
}

func (f *Fetch) wait(ctx context.Context) error {
	if f.Deaf {
		ctx = context.Background()
	}
	timer := time.NewTimer(f.Duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// group puts callers with the same outcome together.
func group(all []returned) []Outcome {
	type same struct{ key, value, source, err string }
	index := map[same]int{}
	var outcomes []Outcome
	for _, r := range all {
		k := same{key: r.key, value: r.value, source: r.source.String()}
		if r.err != nil {
			k.source, k.err = "", r.err.Error()
		}
		i, ok := index[k]
		if !ok {
			i = len(outcomes)
			index[k] = i
			outcomes = append(outcomes, Outcome{
				Key: r.key, Value: excerpt(r.value), Size: len(r.value), Source: k.source, Err: failureOf(r.err),
				FirstCall: r.called, LastCall: r.called, FirstReturn: r.returned, LastReturn: r.returned,
			})
		}
		outcomes[i].add(r)
	}
	return outcomes
}

func (o *Outcome) add(r returned) {
	o.N++
	o.Overrun = max(o.Overrun, r.overrun)
	if r.called.Before(o.FirstCall) {
		o.FirstCall = r.called
	}
	if r.called.After(o.LastCall) {
		o.LastCall = r.called
	}
	if r.returned.Before(o.FirstReturn) {
		o.FirstReturn = r.returned
	}
	if r.returned.After(o.LastReturn) {
		o.LastReturn = r.returned
	}
}
