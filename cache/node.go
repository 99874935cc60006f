package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/outage"
)

// nodeClient is what the store asks of a single Redis node: everything that
// isn't routed by key.
type nodeClient interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	Process(ctx context.Context, cmd redis.Cmder) error
	AddHook(redis.Hook)
	PubSubShardNumSub(ctx context.Context, channels ...string) *redis.MapStringIntCmd
}

// clusterClient is what tells a cluster's client, or a wrapper of one, from
// others.
type clusterClient interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, fn func(context.Context, *redis.Client) error) error
	ReloadState(ctx context.Context)
}

// A node is one Redis server that takes writes: its breaker, its shared reads
// and its subscription.
type node struct {
	addr    string
	client  nodeClient
	slots   chan struct{} // calls under way
	breaker *breaker
	outage  *outage.Node
	reads   nodeReads
	orders  *lane[*orders]
	sub     *subscriber
	ctx     context.Context // ends with the node
	cancel  context.CancelFunc
}

func newNode(s *Redis, addr string, client nodeClient, onProbe func(context.Context)) *node {
	client.AddHook(endedDials{})
	n := &node{addr: addr, client: client, slots: make(chan struct{}, s.opts.MaxInFlight), outage: outage.NewNode(client)}
	n.ctx, n.cancel = context.WithCancel(s.ctx)
	n.breaker = &breaker{
		limit: int32(s.opts.BreakerFailures),
		ctx:   n.ctx,
		spawn: s.spawn,
		probe: func(ctx context.Context) error {
			onProbe(ctx)
			err := s.bounded(ctx, n, "PING", func(ctx context.Context) error {
				return client.Process(ctx, once{redis.NewCmd(ctx, "ping")})
			})
			if err != nil {
				return err
			}
			return n.sub.awaitSeen(ctx)
		},
		changed: func(open bool, since time.Duration, err error) {
			kind := BreakerOpened
			if !open {
				kind = BreakerClosed
			} else { // the cause is about to be known
				ctx, cancel := context.WithTimeout(n.ctx, s.opts.RedisTimeout)
				n.outage.Known(ctx)
				cancel()
			}
			s.observe(Event{Kind: kind, Node: addr, Duration: since, Err: n.explain(err)})
		},
	}
	n.breaker.arm()
	n.reads, n.orders = nodeReads{newBatcher(s, n)}, newOrderLane(s, n)
	n.sub = newSubscriber(s, n, n.ctx)
	return n
}

// nodeReads names the node in the errors of its reads.
type nodeReads struct{ *batcher }

func (r nodeReads) read(ctx context.Context, name string) (*Reading, error) {
	reading, err := r.batcher.read(ctx, name)
	if err != nil {
		return nil, r.n.explain(err)
	}
	return reading, nil
}

// explain names the node in an error of a call. An error that doesn't tell a cause gets
// the cause of the node's outage, as far as it is known.
func (n *node) explain(err error) error {
	isErr := func(target error) bool { return errors.Is(err, target) }
	switch {
	case isErr(ErrUnavailable) && outage.SaysNothing(err):
		return n.outage.Explain(err)
	case slices.ContainsFunc([]error{errBreakerOpen, errTimeout, errBusy, errUnsubscribed}, isErr):
		return n.outage.Explain(err)
	case isErr(ErrUnavailable), isErr(ErrRefused):
		return n.outage.Name(err)
	}
	return err
}

// failed takes note of the classified error of a call. It is called also if the error
// comes too late for the caller.
func (s *Redis) failed(n *node, err error) {
	if !tripsBreaker(err) {
		return
	}
	if outage.SaysNothing(err) {
		s.silent(n)
		return
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok { // the client's is the last: see classify
		causes := all.Unwrap()
		err = causes[len(causes)-1]
	}
	n.outage.Failed(err)
}

// silent is called when a call to the node got no answer in time.
func (s *Redis) silent(n *node) { n.outage.Silent(n.ctx, s.spawnCall, s.opts.RedisTimeout) }

// A topology knows which node serves a key.
type topology interface {
	// load finds the nodes for the first time.
	load(ctx context.Context) error
	// start begins the subscriptions.
	start()
	// node serves the key or channel of that name.
	node(name string) (*node, error)
	// all lists the nodes there are.
	all() []*node
	// refresh looks again, soon, which node serves what.
	refresh()
	// close ends the subscriptions and waits until they have ended. Commands
	// still find their node.
	close()
}

// single is the topology of a standalone server or of Sentinel's master.
type single struct{ n *node }

func newSingleTopology(s *Redis) *single {
	addr := "redis"
	if c, ok := s.client.(interface{ Options() *redis.Options }); ok {
		addr = c.Options().Addr
	}
	return &single{n: newNode(s, addr, s.client, func(context.Context) {})}
}

func (t *single) load(context.Context) error { return nil }
func (t *single) start()                     { t.n.sub.start() }
func (t *single) node(string) (*node, error) { return t.n, nil }
func (t *single) all() []*node               { return []*node{t.n} }
func (t *single) refresh()                   {}
func (t *single) close()                     { t.n.sub.stop() }

// cluster is the topology of a Redis Cluster: a node for each master met so
// far, found by its address.
type cluster struct {
	s      *Redis
	client clusterClient

	slots *outage.Node // where they are read from, and why they can't be

	mu      sync.RWMutex
	loaded  bool
	started bool
	closed  bool
	nodes   map[string]*node
}

func newClusterTopology(s *Redis, client clusterClient) *cluster {
	return &cluster{s: s, client: client, slots: outage.NewNode(client), nodes: map[string]*node{}}
}

func (t *cluster) all() []*node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.nodes))
}

func (t *cluster) refresh() { t.client.ReloadState(t.s.ctx) }

// errNotLoaded is the answer while the cluster's slots were never read.
var errNotLoaded = fmt.Errorf("%w: the cluster's slots are not known yet", ErrUnavailable)

// load reads the cluster's slots and makes a node for each master. The client
// loads them with timeouts of its own, so a goroutine waits for it.
func (t *cluster) load(ctx context.Context) error {
	_, err := t.masters(ctx)
	return err
}

// masters is load, and lists the addresses of the masters there are.
func (t *cluster) masters(ctx context.Context) (map[string]bool, error) {
	done := make(chan error, 1)
	var mu sync.Mutex
	masters := map[string]bool{}
	if !t.s.spawnCall(func() {
		err := t.client.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
			mu.Lock()
			masters[c.Options().Addr] = true
			mu.Unlock()
			_, err := t.forClient(c)
			return err
		})
		if err == nil {
			err = t.nowLoaded(ctx)
		}
		if err != nil {
			t.slots.Failed(err) // which may come too late
		} else {
			t.slots.Answered()
		}
		done <- err
	}) {
		return nil, ErrClosed
	}
	select {
	case err := <-done:
		return masters, classify("CLUSTER SLOTS", err)
	case <-ctx.Done():
		t.slots.Silent(t.s.ctx, t.s.spawnCall, t.s.opts.RedisTimeout)
		return nil, t.slots.Explain(errTimeout)
	}
}

// nowLoaded begins to use the nodes that were found, the first time: it asks one
// whether the cluster has sharded channels, before any is subscribed to.
func (t *cluster) nowLoaded(ctx context.Context) error {
	t.mu.RLock()
	loaded, nodes := t.loaded, slices.Collect(maps.Values(t.nodes))
	t.mu.RUnlock()
	if loaded || len(nodes) == 0 {
		return nil
	}
	n := nodes[0]
	err := t.s.bounded(ctx, n, "PUBSUB SHARDNUMSUB", func(ctx context.Context) error {
		return n.client.PubSubShardNumSub(ctx, "probe").Err()
	})
	switch {
	case err == nil:
		t.s.sharded.Store(true)
	case !errors.Is(err, ErrRefused): // not an older Redis, but no answer
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loaded = true
	t.startAll()
	return nil
}

// startAll starts the subscriptions that may be. t.mu is held.
func (t *cluster) startAll() {
	if !t.started || !t.loaded {
		return
	}
	for _, n := range t.nodes {
		n.sub.start()
	}
}

// masterCheck is how often the masters are looked through for new ones, so that
// this process is subscribed to a master before a slot arrives there.
const masterCheck = time.Second

func (t *cluster) start() {
	t.mu.Lock()
	t.started = true
	t.startAll()
	t.mu.Unlock()
	t.s.spawn(t.followMasters)
}

// followMasters ends with the store.
func (t *cluster) followMasters() {
	for sleep(t.s.ctx, masterCheck) == nil {
		if masters, err := t.masters(t.s.ctx); err == nil && len(masters) > 0 {
			t.dropDemoted(masters)
		} // else the next round tries again
	}
}

// dropDemoted closes the nodes that are masters no longer and that nobody
// watches anything on.
func (t *cluster) dropDemoted(masters map[string]bool) {
	var gone []*node
	t.mu.Lock()
	for addr, n := range t.nodes {
		if !masters[addr] && n.sub.idle() {
			delete(t.nodes, addr)
			gone = append(gone, n)
		}
	}
	t.mu.Unlock()
	for _, n := range gone {
		n.sub.stop()
		n.cancel()
	}
	if len(gone) > 0 {
		t.s.checkFeeds()
	}
}

func (t *cluster) node(name string) (*node, error) {
	t.mu.RLock()
	loaded := t.loaded
	t.mu.RUnlock()
	if !loaded {
		return nil, t.slots.Explain(errNotLoaded)
	}
	c, err := t.client.MasterForKey(t.s.ctx, name)
	if err != nil {
		return nil, classify("CLUSTER SLOTS", err)
	}
	return t.forClient(c)
}

// forClient is the node that a master's client belongs to. A master that comes
// back at its old address comes with a new client, and gets a new node: the old
// client has been closed.
func (t *cluster) forClient(c *redis.Client) (*node, error) {
	addr := c.Options().Addr
	t.mu.RLock()
	n := t.nodes[addr]
	t.mu.RUnlock()
	if n != nil && n.client == nodeClient(c) {
		return n, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if n = t.nodes[addr]; n == nil || n.client != nodeClient(c) {
		if old := n; old != nil {
			t.s.spawn(func() {
				t.s.rehome(old.sub)
				old.sub.stop()
				old.cancel()
				t.s.checkFeeds() // its end put them down, maybe after the new node was heard
			})
		}
		n = newNode(t.s, addr, c, t.client.ReloadState)
		t.nodes[addr] = n
		t.s.feeds.down() // until its invalidations are heard, too
		t.startAll()
	}
	return n, nil
}

func (t *cluster) close() {
	t.mu.Lock()
	t.closed = true
	nodes := slices.Collect(maps.Values(t.nodes))
	t.mu.Unlock()
	for _, n := range nodes {
		n.sub.stop()
	}
}
