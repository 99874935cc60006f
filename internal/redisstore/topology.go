package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/outage"
	"github.com/stampedeguard/stampede/internal/store"
)

// nodeClient has the methods for a single Redis node: everything that isn't
// routed by key.
type nodeClient interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	Process(ctx context.Context, cmd redis.Cmder) error
	AddHook(redis.Hook)
}

// clusterClient has the methods that tell a cluster's client, or a wrapper of
// one, from others.
type clusterClient interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, fn func(context.Context, *redis.Client) error) error
	ReloadState(ctx context.Context)
}

// A node is one Redis server that takes writes.
type node struct {
	s       *Store
	addr    string
	client  nodeClient
	single  bool // it serves all keys
	breaker *breaker
	outage  *outage.Node
	reads   *queue
	scripts *queue
	clock   clock
	sub     *subscription

	valueSize atomic.Int64 // mean, of the values that were read

	ctx    context.Context // ends with the node
	cancel context.CancelFunc
}

// newNode returns a node. Its subscription is not started. onProbe is called before each
// probe of its breaker.
func newNode(s *Store, addr string, client nodeClient, onProbe func(context.Context)) *node {
	client.AddHook(endedDials{})
	n := &node{s: s, addr: addr, client: client, outage: outage.NewNode(client)}
	n.ctx, n.cancel = context.WithCancel(s.ctx)
	n.reads, n.scripts = newReadQueue(n), newScriptQueue(n)
	n.sub = newSubscription(n)
	n.breaker = &breaker{
		limit: int32(s.opts.BreakerFailures),
		ctx:   n.ctx,
		spawn: s.spawn,
		probe: func(ctx context.Context) error {
			onProbe(ctx)
			if err := n.direct(ctx, "PING", redis.NewCmd(ctx, "ping")); err != nil {
				return err
			}
			return n.sub.awaitSeen(ctx)
		},
		opened: func() {
			n.reads.fail(n.away())
			n.scripts.fail(n.away())
		},
		changed: n.breakerChanged,
	}
	return n
}

func (n *node) breakerChanged(open bool, since time.Duration, err error) {
	kind := store.BreakerClosed
	if open {
		kind = store.BreakerOpened
		ctx, cancel := context.WithTimeout(n.ctx, n.s.opts.RedisTimeout)
		n.outage.Known(ctx) // the cause is about to be known
		cancel()
	}
	n.s.report(store.Event{Kind: kind, Node: n.addr, Duration: since, Err: n.explain(err)})
}

// direct carries out a command that is not routed by key and does not wait its turn, even
// while the breaker is open. After an error the command may still be in use.
func (n *node) direct(ctx context.Context, op string, cmd redis.Cmder) error {
	err := n.s.bounded(ctx, op, func(ctx context.Context) error {
		err := n.client.Process(ctx, cmd)
		n.noteOutcome(classify(op, err))
		return err
	})
	if errors.Is(err, errTimeout) {
		n.silent()
	}
	return n.explain(err)
}

// bounded runs fn in the client and returns its error, classified. It returns after
// RedisTimeout, or when ctx ends; fn may then still be at work.
func (s *Store) bounded(ctx context.Context, op string, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.RedisTimeout)
	defer cancel() // not by fn's goroutine: with the answer there, too, the select could take the end of ctx
	done := make(chan error, 1)
	if !s.spawnCall(func() { done <- classify(op, fn(ctx)) }) {
		return store.ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errTimeout
	}
}

// noteOutcome takes note of the classified outcome of a command, which tells why the node
// is away or that it is not. It may come too late for any caller.
func (n *node) noteOutcome(err error) {
	switch {
	case err == nil:
		n.outage.Answered()
		return
	case !tripsBreaker(err):
		return
	case outage.SaysNothing(err):
		n.silent()
		return
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok { // the client's is the last: see classify
		causes := all.Unwrap()
		err = causes[len(causes)-1]
	}
	n.outage.Failed(err)
}

// silent is called when a command got no answer in time.
func (n *node) silent() { n.outage.Silent(n.ctx, n.s.spawnCall, n.s.opts.RedisTimeout) }

// explain names the node in an error of a call. An error that doesn't tell a cause gets
// the cause of the node's outage, as far as it is known.
func (n *node) explain(err error) error {
	isErr := func(target error) bool { return errors.Is(err, target) }
	switch {
	case isErr(store.ErrUnavailable) && outage.SaysNothing(err):
		return n.outage.Explain(err)
	case slices.ContainsFunc([]error{errBreakerOpen, errTimeout, errUnsubscribed}, isErr):
		return n.outage.Explain(err)
	case isErr(store.ErrUnavailable), isErr(store.ErrRefused):
		return n.outage.Name(err)
	}
	return err
}

// away is the error of a call that the breaker keeps from the node.
func (n *node) away() error { return n.explain(errBreakerOpen) }

// classify sorts the client's error for op and names the node in it.
func (n *node) classify(op string, err error) error { return n.explain(classify(op, err)) }

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
	// refresh soon looks up again which node serves which keys.
	refresh()
	// close ends the subscriptions and waits until they have ended. Commands
	// still find their node.
	close()
}

// single is the topology of a standalone server or of Sentinel's master.
type single struct{ n *node }

func newSingleTopology(s *Store) *single {
	addr := "redis"
	if c, ok := s.client.(interface{ Options() *redis.Options }); ok {
		addr = c.Options().Addr
	}
	n := newNode(s, addr, s.client, func(context.Context) {})
	n.single = true
	return &single{n}
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
	s      *Store
	client clusterClient

	slots *outage.Node // where they are read from, and why they can't be

	mu      sync.RWMutex
	loaded  bool
	started bool
	closed  bool
	nodes   map[string]*node
}

func newClusterTopology(s *Store, client clusterClient) *cluster {
	return &cluster{s: s, client: client, slots: outage.NewNode(client), nodes: map[string]*node{}}
}

func (t *cluster) all() []*node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.nodes))
}

func (t *cluster) refresh() { t.client.ReloadState(t.s.ctx) }

// errNotLoaded is the answer while the cluster's slots were never read.
var errNotLoaded = fmt.Errorf("%w: the cluster's slots are not known yet", store.ErrUnavailable)

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
		return nil, store.ErrClosed
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
	err := n.direct(ctx, "PUBSUB SHARDNUMSUB", redis.NewMapStringIntCmd(ctx, "pubsub", "shardnumsub", "probe"))
	switch {
	case err == nil:
		t.s.sharded.Store(true)
	case !errors.Is(err, store.ErrRefused): // not an older Redis, but no answer
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

// dropDemoted closes the nodes that are masters no longer and that serve no watch.
func (t *cluster) dropDemoted(masters map[string]bool) {
	var gone []*node
	t.mu.Lock()
	for addr, n := range t.nodes {
		if !masters[addr] && t.s.watches(n.sub) == 0 {
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
		return nil, store.ErrClosed
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
		t.s.feeds.Down() // until its invalidations are heard, too
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

// errUnsubscribed: the server does not see this process's own liveness channel.
var errUnsubscribed = fmt.Errorf("%w: the subscription of this process is not live", store.ErrUnavailable)
