package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/bench/peer"
)

const childEnv = "STAMPEDE_BENCH_CHILD"

// IsChild reports whether this process was started by [Start].
func IsChild() bool { return os.Getenv(childEnv) != "" }

// RunChild carries out the orders on stdin until it is closed.
func RunChild() {
	// Clients' messages about broken connections are no news here.
	log.SetOutput(io.Discard)
	redis.SetLogger(silent{})
	c := &child{out: bufio.NewWriter(os.Stdout)}
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var o Order
		if err := in.Decode(&o); err != nil {
			return
		}
		e, err := c.obey(o)
		if err != nil {
			e = Event{Kind: "error", Text: err.Error()}
		} else {
			e.Kind = "done"
		}
		c.say(e)
	}
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

type child struct {
	cache peer.Cache

	mu  sync.Mutex // guards out
	out *bufio.Writer
}

func (c *child) say(e Event) {
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.out.Write(append(line, '\n'))
	if c.out.Flush() != nil {
		os.Exit(1) // the parent has gone
	}
}

func (c *child) obey(o Order) (Event, error) {
	if c.cache == nil && o.Do != Open && o.Do != Usage {
		return Event{}, errors.New("no system is open")
	}
	switch o.Do {
	case Open:
		s, err := peer.Named(o.System)
		if err != nil {
			return Event{}, err
		}
		c.cache, err = s.Open(o.Options)
		return Event{}, err
	case Burst:
		return c.burst(o), nil
	case Load:
		return c.load(o), nil
	case Loop:
		return c.loop(o)
	case Preset:
		return Event{}, c.preset(o)
	case Cancel:
		return c.cancel(o)
	case Delete:
		ctx, cancel := deadline(o)
		defer cancel()
		return Event{}, c.cache.Delete(ctx, o.Key)
	case Usage:
		return Event{CPU: cpu()}, nil
	}
	return Event{}, fmt.Errorf("unknown order %q", o.Do)
}

// An origin counts the fetches of one order.
type origin struct {
	Origin
	value     string
	began     func(time.Time) // may be nil
	countOnly bool            // there are too many to keep
	count     atomic.Int64

	mu   sync.Mutex
	seen []Span
}

func (c *child) origin(o Order) *origin {
	r := &origin{Origin: o.Fetch, value: o.Fetch.Value}
	if pad := r.Size - len(r.value); pad > 0 {
		r.value += strings.Repeat(".", pad)
	}
	if o.Announce {
		r.began = func(at time.Time) { c.say(Event{Kind: "fetch", At: at}) }
	}
	return r
}

var errOrigin = errors.New("the origin failed")

// fetch heeds its context, as a query of a database does.
func (r *origin) fetch(ctx context.Context) (string, error) {
	r.count.Add(1)
	if r.countOnly {
		return r.value, nil
	}
	s := Span{From: time.Now()}
	if r.began != nil {
		r.began(s.From)
	}
	err := sleep(ctx, r.Takes)
	s.To = time.Now()
	r.mu.Lock()
	r.seen = append(r.seen, s)
	r.mu.Unlock()
	switch {
	case err != nil:
		return "", err
	case r.Fails:
		return "", errOrigin
	}
	return r.value, nil
}

func (r *origin) fetches() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.seen...)
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func deadline(o Order) (context.Context, context.CancelFunc) {
	if o.Deadline > 0 {
		return context.WithTimeout(context.Background(), o.Deadline)
	}
	return context.WithCancel(context.Background())
}

// get is one call, timed.
func (c *child) get(ctx context.Context, key string, fetch peer.Fetch) Call {
	call := Call{From: time.Now()}
	v, err := c.cache.Get(ctx, key, fetch)
	call.Took = time.Since(call.From)
	if err != nil {
		call.Err = err.Error()
	}
	call.Value, _, _ = strings.Cut(v[:min(len(v), 32)], ".")
	return call
}
