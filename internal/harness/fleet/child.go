package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

const childName = "fleet"

// Main runs a child and ends the process, if this process was started as one.
// Call it first thing in main, or in TestMain.
func Main() { spawn.Main(childName, runChild) }

// A child is the state of a child process.
type child struct {
	parent *spawn.Parent
	wire   wireCounter
	calls  sync.WaitGroup // requests that are being served

	// Set by open, before any other request.
	client redis.UniversalClient
	store  *cache.Redis
	guard  *guard.Guard[string]
}

func runChild(parent *spawn.Parent) error {
	c := &child{parent: parent, wire: wireCounter{counts: map[string]int{}}}
	for {
		var r request
		if err := parent.Hear(&r); err != nil {
			return err
		}
		switch r.Op {
		case "open":
			c.answer(&r, reply{Err: failureOf(c.open(r.Open))})
		case "close":
			err := errors.Join(c.guard.Close(), c.store.Close())
			c.calls.Wait() // they get ErrClosed
			err = errors.Join(err, c.client.Close())
			c.answer(&r, reply{Err: failureOf(err)})
			return nil
		default:
			c.calls.Go(func() { c.answer(&r, c.serve(&r)) })
		}
	}
}

func (c *child) open(cfg *Config) error {
	opts := &redis.UniversalOptions{
		Addrs: cfg.Redis.Addrs, IsClusterMode: cfg.Redis.Cluster, MasterName: cfg.Redis.Master,
		Dialer: c.wire.dial,
	}
	c.client = redis.NewUniversalClient(opts)
	store := cfg.Store
	store.Observer = c
	var err error
	if c.store, err = cache.NewRedis(c.client, store); err != nil {
		return err
	}
	policy := cfg.Policy
	policy.Observer = c
	policy.Errors = map[string]error{}
	for _, name := range cfg.Errors {
		policy.Errors[name] = Sentinel(name)
	}
	c.guard, err = guard.New[string](c.store, cfg.Guard, policy)
	return err
}

func (c *child) serve(r *request) reply {
	ctx := context.Background()
	switch r.Op {
	case "get":
		return reply{Outcomes: c.get(r.Get)}
	case "load":
		loaded := c.load(r.Load)
		return reply{Loaded: &loaded}
	case "peek":
		return c.peek(ctx, r.Key)
	case "stats":
		return reply{Stats: Stats{Commands: c.wire.all(), Goroutines: runtime.NumGoroutine(), Guard: c.guard.Stats()}}
	case "set":
		return timed(func() error { return c.guard.Set(ctx, r.Key, r.Value) })
	case "delete":
		return timed(func() error { return c.guard.Delete(ctx, r.Key) })
	case "reset":
		return timed(func() error { return c.guard.Reset(ctx, r.Key) })
	}
	return reply{Err: &Failure{Text: fmt.Sprintf("fleet: unknown request %q", r.Op)}}
}

func timed(call func() error) reply {
	called := time.Now()
	err := call()
	return reply{Span: Span{called, time.Now()}, Err: failureOf(err)}
}

func (c *child) peek(ctx context.Context, key string) reply {
	res, err := c.guard.Peek(ctx, key)
	if err != nil {
		return reply{Err: failureOf(err)}
	}
	return reply{Peeked: Peeked{
		Value: excerpt(res.Value), Size: len(res.Value),
		Stale: res.Source == guard.Stale, Age: res.Age, TTL: res.TTL,
	}}
}

func (c *child) answer(r *request, answer reply) {
	answer.ID = r.ID
	c.parent.Tell(line{Reply: &answer})
}

// tell writes an event and returns when the parent can read it, whatever
// becomes of this process.
func (c *child) tell(e Event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	e.PID = os.Getpid()
	c.parent.Tell(line{Event: &e})
}

// Observe implements [cache.Observer].
func (c *child) Observe(ev cache.Event) {
	if !forwarded[ev.Kind] {
		return
	}
	e := Event{Kind: ev.Kind, Key: ev.Key, Attempt: ev.Attempt}
	if !ev.Token.IsZero() {
		e.Token = ev.Token.String()
	}
	if ev.Err != nil {
		e.Err = ev.Err.Error()
	}
	c.tell(e)
}
