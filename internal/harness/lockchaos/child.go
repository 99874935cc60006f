package lockchaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
	"github.com/stampedeguard/stampede/lock"
)

const childName = "lockchaos"

// ChildMain runs a child and ends the process, if this process was started as one. Call it
// first thing in main, or in TestMain.
func ChildMain() { spawn.Main(childName, runChild) }

// An order opens a child, or has it end.
type order struct {
	Kind      string // Standalone, …
	Addrs     []string
	Namespace string
	Close     bool
}

// A told is a report of a child: a time in which it held a lock, or that it has closed.
type told struct {
	Name     string
	Fence    uint64
	From, To time.Time // the context was seen to be good at both
	Lost     bool
	Waited   time.Duration

	Err    string
	Closed bool
	Leaked int // goroutines
}

// TTL is that of all locks.
const TTL = time.Second

func backends(o *order) (all []lock.Backend, close func(), err error) {
	var clients []redis.UniversalClient
	switch o.Kind {
	case Sentinel:
		clients = append(clients, redis.NewFailoverClient(&redis.FailoverOptions{MasterName: o.Addrs[0], SentinelAddrs: o.Addrs[1:]}))
	case Cluster:
		clients = append(clients, redis.NewClusterClient(&redis.ClusterOptions{Addrs: o.Addrs}))
	default:
		for _, addr := range o.Addrs {
			clients = append(clients, redis.NewClient(&redis.Options{Addr: addr, DialTimeout: TTL / 2}))
		}
	}
	var stores []*cache.Redis
	for _, client := range clients {
		s, err := cache.NewRedis(client, cache.Options{Namespace: o.Namespace})
		if err != nil {
			return nil, nil, err
		}
		stores, all = append(stores, s), append(all, lock.On(s))
	}
	return all, func() {
		for i := range stores {
			_ = stores[i].Close()
			_ = clients[i].Close()
		}
	}, nil
}

func runChild(parent *spawn.Parent) error {
	signal.Ignore(os.Interrupt)
	logging.Disable()
	before := runtime.NumGoroutine()
	var o order
	if err := parent.Hear(&o); err != nil {
		return err
	}
	all, closeStores, err := backends(&o)
	if err != nil {
		return err
	}
	l, err := lock.New(lock.Options{TTL: TTL, Retry: 100 * time.Millisecond}, all...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	for i := range 6 {
		loops.Go(func() {
			for ctx.Err() == nil {
				contend(ctx, parent, l, fmt.Sprint("name", (i+rand.IntN(2))%Names))
			}
		})
	}
	err = parent.Hear(&o) // to close, or the parent is gone
	cancel()
	loops.Wait()
	if err != nil {
		return err
	}
	closed := told{Closed: true}
	if err := l.Close(); err != nil {
		closed.Err = err.Error()
	}
	closeStores()
	for began := time.Now(); runtime.NumGoroutine() > before+1 && time.Since(began) < 5*time.Second; time.Sleep(10 * time.Millisecond) {
	}
	if n := runtime.NumGoroutine(); n > before+1 { // the one that hears the parent stays
		closed.Leaked = n - before
	}
	parent.Tell(closed)
	return nil
}

// Names is how many locks there are.
const Names = 3

// contend holds a lock for a while, and tells for how long it was seen to be held. A time is
// taken before the context is looked at.
func contend(ctx context.Context, parent *spawn.Parent, l *lock.Locker, name string) {
	waitCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	k, err := l.Lock(waitCtx, name)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrHeld) && waitCtx.Err() == nil {
			parent.Tell(told{Name: name, Err: err.Error()})
		}
		if errors.Is(err, lock.ErrUnavailable) {
			time.Sleep(20 * time.Millisecond)
		}
		return
	}
	span := told{Name: name, Fence: k.Fence(), Waited: k.Waited()}
	until := time.Now().Add(rand.N(20 * time.Millisecond))
	if rand.IntN(20) == 0 {
		until = until.Add(rand.N(2 * TTL))
	}
	for now := time.Now(); ; now = time.Now() {
		if k.Context().Err() != nil {
			span.Lost = true
			break
		}
		if span.From.IsZero() {
			span.From = now
		}
		span.To = now
		if now.After(until) || ctx.Err() != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if !span.From.IsZero() {
		parent.Tell(span)
	}
	_ = k.Unlock(context.Background())
}
