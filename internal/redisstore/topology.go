package redisstore

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
	"github.com/stampedeguard/stampede/internal/store"
)

// clusterClient has the methods that tell a cluster's client, or a wrapper of
// one, from others.
type clusterClient interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, fn func(context.Context, *redis.Client) error) error
	ReloadState(ctx context.Context)
}

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

// newTopology is the topology of the client.
func newTopology(s *core, w *watches) topology {
	if c, ok := s.client.(clusterClient); ok {
		return &cluster{s: s, watches: w, client: c, slots: outage.NewNode(c), nodes: map[string]*node{}}
	}
	addr := "redis"
	if c, ok := s.client.(interface{ Options() *redis.Options }); ok {
		addr = c.Options().Addr
	}
	n := newNode(s, w, addr, s.client, func(context.Context) {})
	n.single = true
	return &single{n}
}

// single is the topology of a standalone server or of Sentinel's master.
type single struct{ n *node }

func (t *single) load(context.Context) error { return nil }
func (t *single) start()                     { t.n.sub.start() }
func (t *single) node(string) (*node, error) { return t.n, nil }
func (t *single) all() []*node               { return []*node{t.n} }
func (t *single) refresh()                   {}
func (t *single) close()                     { t.n.sub.stop() }

// cluster is the topology of a Redis Cluster: a node for each master met so
// far, found by its address.
type cluster struct {
	s       *core
	watches *watches
	client  clusterClient

	slots *outage.Node // where they are read from, and why they can't be

	mu      sync.RWMutex
	loaded  bool
	started bool
	closed  bool
	nodes   map[string]*node
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
		if !masters[addr] && t.watches.served(n.sub) == 0 {
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
		t.watches.checkFeeds()
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
				t.watches.rehome(old.sub)
				old.sub.stop()
				old.cancel()
				t.watches.checkFeeds() // its end put them down, maybe after the new node was heard
			})
		}
		n = newNode(t.s, t.watches, addr, c, t.client.ReloadState)
		t.nodes[addr] = n
		t.watches.feeds.Down() // until its invalidations are heard, too
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
