package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

const childName = "chaos"

// ChildMain runs a child and ends the process, if this process was started as
// one. Call it first thing in main, or in TestMain.
func ChildMain() { spawn.Main(childName, runChild) }

// A child is the state of a child process.
type child struct {
	parent *spawn.Parent
	cfg    config
	client redis.UniversalClient
	store  *cache.Redis
	guards map[string]*guard.Guard[string]
	before Idle // goroutines before the load

	seq     atomic.Uint64 // of fetches and changes
	callers atomic.Uint64

	leasesMu sync.Mutex
	leases   map[string]bool // tokens granted; true: taken over

	getsMu sync.Mutex
	gets   map[uint64]*Get // under way

	loading  context.CancelFunc
	work     sync.WaitGroup // loops of the load, and callers
	overseer sync.WaitGroup
	oversee  context.CancelFunc
}

func runChild(parent *spawn.Parent) error {
	// A Ctrl-C goes to all processes of the terminal; the parent ends this one.
	signal.Ignore(os.Interrupt)
	logging.Disable() // lost connections are expected
	c := &child{
		parent: parent, guards: map[string]*guard.Guard[string]{},
		leases: map[string]bool{}, gets: map[uint64]*Get{},
	}
	for {
		var o order
		if err := parent.Hear(&o); err != nil {
			return err
		}
		answer := report{Done: o.Op}
		if err := c.obey(&o, &answer); err != nil {
			answer.Err = err.Error()
		}
		c.write(&answer)
		if o.Op == "close" {
			return nil
		}
	}
}

func (c *child) obey(o *order, answer *report) error {
	switch o.Op {
	case "open":
		c.cfg = *o.Config
		if err := c.open(); err != nil {
			return err
		}
		c.before = c.settle()
		answer.Idle = &c.before
	case "load":
		c.load()
	case "idle":
		c.unload()
		idle := c.settle()
		answer.Idle = &idle
	case "close":
		return c.close()
	default:
		return fmt.Errorf("chaos: unknown order %q", o.Op)
	}
	return nil
}

func (c *child) open() error {
	c.client = c.connect()
	var err error
	c.store, err = cache.NewRedis(c.client, cache.Options{
		Namespace: "chaos", RedisTimeout: c.cfg.RedisTimeout, Observer: c,
	})
	if err != nil {
		return err
	}
	for _, k := range kinds {
		policy := withTimes(k.policy)
		if k.changed && k.name != kindReserve {
			policy.Reserve.MaxBytes = guard.Off // the checks know no exception for processes that are cut off
		}
		policy.Observer = c
		if c.guards[k.name], err = guard.New(c.store, k.name, policy, k.opts...); err != nil {
			return err
		}
	}
	var ctx context.Context
	ctx, c.oversee = context.WithCancel(context.Background())
	c.overseer.Go(func() { c.watchCallers(ctx) })
	c.overseer.Go(func() { c.watchClock(ctx) })
	c.warmUp()
	return nil
}

// connect returns a client that dials, wherever it wants to, this child's proxy
// of that server. All else is as go-redis has it by default, but that a cluster
// client looks at the cluster's state once a second, not once a minute.
func (c *child) connect() redis.UniversalClient {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		via, ok := c.cfg.Proxies[addr]
		if !ok {
			return nil, fmt.Errorf("chaos: no proxy to %s", addr)
		}
		d := net.Dialer{Timeout: 5 * time.Second}
		return d.DialContext(ctx, network, via)
	}
	off := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	switch c.cfg.Topology {
	case Cluster:
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: c.cfg.Addrs, Dialer: dial, DisableIdentity: true,
			ClusterStateReloadInterval: time.Second, MaintNotificationsConfig: off,
		})
	case Sentinel:
		return redis.NewFailoverClient(&redis.FailoverOptions{
			SentinelAddrs: c.cfg.Addrs, MasterName: c.cfg.Master, Dialer: dial, DisableIdentity: true,
		})
	}
	return redis.NewClient(&redis.Options{
		Addr: c.cfg.Addrs[0], Dialer: dial, DisableIdentity: true, MaintNotificationsConfig: off,
	})
}

// warmUp has the client connect to all that the load will use, so that its
// connections do not look like a leak.
func (c *child) warmUp() {
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patient)
			defer cancel()
			key := fmt.Sprintf("%s-warm-%d-%d", kindCold, c.cfg.Proc, i)
			_, _ = c.guards[kindCold].Get(ctx, key, func(context.Context) (string, error) { return "warm", nil })
		})
	}
	wg.Wait()
}

// close closes everything in the order in which a service does.
func (c *child) close() error {
	var errs []error
	for _, g := range c.guards {
		errs = append(errs, g.Close())
	}
	errs = append(errs, c.store.Close())
	c.unload() // callers get ErrClosed
	c.oversee()
	c.overseer.Wait()
	return errors.Join(append(errs, c.client.Close())...)
}

func (c *child) write(r *report) { c.parent.Tell(r) }

// told are the events that are passed on to the parent.
var told = map[cache.EventKind]bool{
	cache.LeaseTakenOver: true, cache.LeaseLost: true, cache.FillRefused: true, cache.Unguarded: true,
	cache.KeyQuarantined: true, cache.EntryDamaged: true, cache.MessageDamaged: true,
	cache.BreakerOpened: true, cache.BreakerClosed: true, cache.LivenessOff: true, cache.LivenessOn: true,
	cache.SubscriptionUp: true, cache.SubscriptionLost: true, cache.ProcessLate: true,
}

// Observe implements [cache.Observer].
func (c *child) Observe(ev cache.Event) {
	if ev.Kind == cache.LeaseGranted || ev.Kind == cache.LeaseTakenOver {
		c.leasesMu.Lock()
		c.leases[ev.Token.String()] = ev.Kind == cache.LeaseTakenOver
		c.leasesMu.Unlock()
	}
	if !told[ev.Kind] {
		return
	}
	e := &Event{Kind: string(ev.Kind), At: now(), Key: ev.Key, Node: ev.Node}
	if ev.Err != nil {
		e.Err = ev.Err.Error()
	}
	if !ev.Token.IsZero() {
		e.Token = ev.Token.String()
	}
	c.write(&report{Event: e})
}

// lease reports the known facts about a fetch's token, once.
func (c *child) lease(token string) (leased, takenOver bool) {
	c.leasesMu.Lock()
	defer c.leasesMu.Unlock()
	takenOver, leased = c.leases[token]
	delete(c.leases, token)
	return leased, takenOver
}
