// Command locks measures package lock beside other locks on Redis, in one run:
//
//	go run ./locks [-rounds 30] [-alone] [-json]
//
// It starts its own redis-server, which must be installed. Three workloads: lock and unlock
// alone; the hand-over to a waiter in another client; and the wait for a holder that was
// killed. All locks have a TTL of 3 s. Each peer waits as its README shows.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
	"github.com/stampedeguard/stampede/lock"
)

const (
	ttl = 3 * time.Second
	// patience bounds a thousand locks, one after another.
	patience = 20 * time.Second
)

// A client takes locks. Its lock function waits, and returns the unlock.
type client struct {
	lock  func(ctx context.Context, name string) (unlock func() error, err error)
	close func()
}

// A system opens clients of one make.
type system struct {
	name string
	open func(addr string) (*client, error)
}

var systems = []system{
	{"stampede", func(addr string) (*client, error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		s, err := cache.NewRedis(c, cache.Options{Namespace: "bench"})
		if err != nil {
			return nil, err
		}
		return ours(func() { _ = s.Close(); _ = c.Close() }, lock.On(s), true)
	}},
	{"stampede Plain", func(addr string) (*client, error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		return ours(func() { _ = c.Close() }, lock.Plain(c), false)
	}},
	{"redislock", func(addr string) (*client, error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		r := redislock.New(c)
		return &client{func(ctx context.Context, name string) (func() error, error) {
			l, err := r.Obtain(ctx, name, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
			if err != nil {
				return nil, err
			}
			return func() error { return l.Release(ctx) }, nil
		}, func() { _ = c.Close() }}, nil
	}},
	{"redsync", func(addr string) (*client, error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		r := redsync.New(redsyncpool.NewPool(c))
		return &client{func(ctx context.Context, name string) (func() error, error) {
			m := r.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1000))
			if err := m.LockContext(ctx); err != nil {
				return nil, err
			}
			return func() error { _, err := m.UnlockContext(ctx); return err }, nil
		}, func() { _ = c.Close() }}, nil
	}},
	{"rueidislock", func(addr string) (*client, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyMajority: 1, NoLoopTracking: true,
			KeyValidity: ttl, ExtendInterval: ttl / 3, TryNextAfter: 20 * time.Millisecond,
		})
		if err != nil {
			return nil, err
		}
		return &client{func(ctx context.Context, name string) (func() error, error) {
			_, cancel, err := l.WithContext(ctx, name)
			return func() error { cancel(); return nil }, err
		}, l.Close}, nil
	}},
}

func ours(closer func(), b lock.Backend, takeOver bool) (*client, error) {
	l, err := lock.New(lock.Options{TTL: ttl, TakeOver: takeOver}, b)
	if err != nil {
		return nil, err
	}
	return &client{func(ctx context.Context, name string) (func() error, error) {
		k, err := l.Lock(ctx, name)
		if err != nil {
			return nil, err
		}
		return func() error { return k.Unlock(ctx) }, nil
	}, func() { _ = l.Close(); closer() }}, nil
}

// A result is the cost of one system: medians.
type result struct {
	System       string  `json:"system"`
	AloneUS      float64 `json:"alone_us"`
	HandOverMS   float64 `json:"handover_ms"`
	DeadHolderMS float64 `json:"dead_holder_ms"`
}

func main() {
	spawn.Main("holder", hold)
	rounds := flag.Int("rounds", 30, "hand-overs of each system; a tenth of that are killed holders")
	alone := flag.Bool("alone", false, "measure lock and unlock alone only")
	asJSON := flag.Bool("json", false, "print one JSON object")
	flag.Parse()
	if *alone {
		*rounds = 0
	}
	if err := run(*rounds, *asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "locks:", err)
		os.Exit(1)
	}
}

func run(rounds int, asJSON bool) error {
	server, err := redistest.StartStandalone(context.Background(), redistest.StandaloneConfig{})
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop() }()
	results := make([]result, len(systems))
	alone := make([][]time.Duration, len(systems))
	for range 5 { // in turns, so that a disturbance meets all of them
		for i := range systems {
			times, err := measureAlone(&systems[i], server.Addr(), 1000)
			if err != nil { // rueidislock was seen to wait for ever for a lock that is free
				fmt.Fprintf(os.Stderr, "%s: alone: %v\n", systems[i].name, err)
			}
			alone[i] = append(alone[i], times...)
		}
	}
	for i := range systems {
		s := &systems[i]
		if results[i] = (result{System: s.name, AloneUS: 1000 * millis(median(alone[i]))}); rounds == 0 {
			continue
		}
		over, err := measureHandOver(s, server.Addr(), rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		dead, err := measureDead(s, server.Addr(), max(1, rounds/10))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		results[i].HandOverMS, results[i].DeadHolderMS = millis(median(over)), millis(median(dead))
	}
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"locks": results})
	}
	if rounds > 0 {
		fmt.Printf("%-16s %20s %16s %18s\n", "", "lock+unlock alone", "hand-over", "killed holder")
	}
	for _, r := range results {
		if rounds == 0 {
			fmt.Printf("%-16s %17.1f µs\n", r.System, r.AloneUS)
			continue
		}
		fmt.Printf("%-16s %17.1f µs %13.2f ms %15.0f ms\n", r.System, r.AloneUS, r.HandOverMS, r.DeadHolderMS)
	}
	return nil
}

func median(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.SortFunc(times, cmp.Compare)
	return times[len(times)/2]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func measureAlone(s *system, addr string, n int) ([]time.Duration, error) {
	c, err := s.open(addr)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var times []time.Duration
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := range n + n/10 {
		began := time.Now()
		unlock, err := c.lock(ctx, "alone")
		if err == nil {
			err = unlock()
		}
		if err != nil {
			return times, err
		}
		if i >= n/10 {
			times = append(times, time.Since(began))
		}
	}
	return times, nil
}

// measureHandOver has two clients hold a lock in turns. The waiter waits for some time that
// no poll is in step with.
func measureHandOver(s *system, addr string, rounds int) ([]time.Duration, error) {
	ctx := context.Background()
	a, err := s.open(addr)
	if err != nil {
		return nil, err
	}
	defer a.close()
	b, err := s.open(addr)
	if err != nil {
		return nil, err
	}
	defer b.close()
	unlock, err := a.lock(ctx, "contended")
	if err != nil {
		return nil, err
	}
	type got struct {
		at     time.Time
		unlock func() error
		err    error
	}
	var times []time.Duration
	for i := range rounds {
		waiter := []*client{b, a}[i%2]
		next := make(chan got)
		go func() {
			unlock, err := waiter.lock(ctx, "contended")
			next <- got{time.Now(), unlock, err}
		}()
		time.Sleep(150*time.Millisecond + time.Duration(i*7919%50)*time.Millisecond)
		released := time.Now()
		if err := unlock(); err != nil {
			return nil, err
		}
		g := <-next
		if g.err != nil {
			return nil, g.err
		}
		times, unlock = append(times, g.at.Sub(released)), g.unlock
	}
	return times, unlock()
}

// order is the command for a child that holds a lock.
type order struct{ System, Addr, Name string }

// hold takes a lock, tells, and waits for its end.
func hold(parent *spawn.Parent) error {
	var o order
	if err := parent.Hear(&o); err != nil {
		return err
	}
	for _, s := range systems {
		if s.name != o.System {
			continue
		}
		c, err := s.open(o.Addr)
		if err != nil {
			return err
		}
		if _, err := c.lock(context.Background(), o.Name); err != nil {
			return err
		}
		parent.Tell(true)
	}
	return parent.Hear(&o)
}

func measureDead(s *system, addr string, rounds int) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := s.open(addr)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var times []time.Duration
	for i := range rounds {
		name := fmt.Sprint("dead", i)
		held := make(chan bool, 1)
		child, err := spawn.Start("holder", spawn.Lines(func(ok *bool) { held <- *ok }))
		if err != nil {
			return nil, err
		}
		child.Tell(order{s.name, addr, name})
		if _, err := spawn.Await(ctx, child, held); err != nil {
			return nil, err
		}
		if err := child.Kill(); err != nil {
			return nil, err
		}
		died := time.Now()
		unlock, err := c.lock(ctx, name)
		if err != nil {
			return nil, err
		}
		times = append(times, time.Since(died))
		if err := unlock(); err != nil {
			return nil, err
		}
	}
	return times, nil
}
