package fleet

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// keptFor is how long a child keeps the figures of a burst to itself: to encode them
// would take CPU time from processes with waiting callers.
const keptFor = 50 * time.Millisecond

// burst has all callers ready before they begin.
func (c *child) burst(o Order) Event {
	origin := c.origin(o)
	calls := make([]Call, o.Callers)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			<-begin
			ctx, cancel := deadline(o)
			defer cancel()
			calls[i] = c.get(ctx, o.Key, origin.fetch)
		})
	}
	time.Sleep(time.Until(o.At))
	close(begin)
	wg.Wait()
	time.Sleep(keptFor)
	return Event{Calls: calls, Fetches: origin.fetches()}
}

// load is an open loop: a call that takes long holds up no other.
func (c *child) load(o Order) Event {
	origin := c.origin(o)
	names := c.names(o)
	n := int(o.For.Seconds() * float64(o.Rate))
	calls := make([]Call, n)
	var wg sync.WaitGroup
	for i := range calls {
		time.Sleep(time.Until(o.At.Add(time.Duration(i) * time.Second / time.Duration(o.Rate))))
		wg.Go(func() {
			ctx, cancel := deadline(o)
			defer cancel()
			calls[i] = c.get(ctx, names[rand.IntN(len(names))], origin.fetch)
		})
	}
	wg.Wait()
	return Event{Calls: calls, Fetches: origin.fetches()}
}

// cancel is a burst in which the first caller, which fetches, and one of the later
// callers give up.
func (c *child) cancel(o Order) (Event, error) {
	origin := c.origin(o)
	began := make(chan time.Time, 1)
	say := origin.began
	origin.began = func(at time.Time) {
		if say != nil {
			say(at)
		}
		select {
		case began <- at:
		default:
		}
	}
	time.Sleep(time.Until(o.At))
	first := c.leaver(o, origin)
	var start time.Time
	select {
	case start = <-began:
	case <-time.After(5 * time.Second):
		return Event{}, errors.New("the first caller fetched nothing within 5 s")
	}
	time.Sleep(20 * time.Millisecond)
	follower := c.leaver(o, origin)
	calls := make([]Call, o.Callers)
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			ctx, cancel := deadline(o)
			defer cancel()
			calls[i] = c.get(ctx, o.Key, origin.fetch)
		})
	}
	time.Sleep(time.Until(start.Add(o.FirstLeaves)))
	firstLeft := first()
	time.Sleep(time.Until(start.Add(o.FollowerLeaves)))
	followerLeft := follower()
	e := Event{FirstLeft: <-firstLeft, FollowerLeft: <-followerLeft}
	wg.Wait()
	e.Calls, e.Fetches = calls, origin.fetches()
	return e, nil
}

// leaver starts a call and returns a function that ends its context. The function
// returns how long the call went on after that: 0 if it had returned before.
func (c *child) leaver(o Order, origin *origin) (leave func() <-chan time.Duration) {
	ctx, cancel := deadline(o)
	returned := make(chan time.Time, 1)
	go func() {
		c.get(ctx, o.Key, origin.fetch)
		returned <- time.Now()
	}()
	return func() <-chan time.Duration {
		left := make(chan time.Duration, 1)
		at := time.Now()
		cancel()
		go func() { left <- max(0, (<-returned).Sub(at)) }()
		return left
	}
}

// deadlineOf returns a context that ends when a loop of that length should.
func deadlineOf(o Order) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), o.For+30*time.Second)
}
