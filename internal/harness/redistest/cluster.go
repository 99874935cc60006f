package redistest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384
)

// ClusterConfig sets up a cluster. The zero value is ready.
type ClusterConfig struct {
	// Replicas gives each master a replica, which takes over when its master
	// is killed. Without, a killed master's slots are gone, and the other
	// masters refuse commands as well unless Args hold
	// {"--cluster-require-full-coverage", "no"}.
	Replicas bool

	// Args are further arguments for each redis-server.
	Args []string
}

// Cluster is a Redis Cluster of three masters, each with a third of the slots.
// Its methods may be called from any goroutine, but those that change the
// cluster not at the same time.
type Cluster struct {
	masters  []*Server // as started; a failover does not change it
	replicas []*Server // replicas[i] began as that of masters[i]; empty without

	mu      sync.Mutex // guards clients
	clients []*redis.ClusterClient
}

// StartCluster starts a cluster and returns once all its nodes see it whole.
// That takes two seconds, which a new master lets pass before it accepts
// commands.
func StartCluster(ctx context.Context, cfg ClusterConfig) (*Cluster, error) {
	return retryPorts(ctx, func(ctx context.Context) (*Cluster, error) {
		c := &Cluster{}
		err := c.start(ctx, cfg)
		if err != nil {
			return nil, errors.Join(err, c.Stop())
		}
		return c, nil
	})
}

func (c *Cluster) start(ctx context.Context, cfg ClusterConfig) error {
	for range clusterMasters {
		if err := addNode(&c.masters, cfg.Args); err != nil {
			return err
		}
		if !cfg.Replicas {
			continue
		}
		if err := addNode(&c.replicas, cfg.Args); err != nil {
			return err
		}
	}
	for _, s := range c.nodes() {
		if err := s.start(ctx); err != nil {
			return err
		}
	}
	if err := c.assignSlots(ctx); err != nil {
		return err
	}
	if err := c.introduce(ctx); err != nil {
		return err
	}
	for i, s := range c.replicas {
		if err := replicate(ctx, s, c.masters[i]); err != nil {
			return err
		}
	}
	return c.WaitReady(ctx)
}

func addNode(nodes *[]*Server, args []string) error {
	bus, err := freePort()
	if err != nil {
		return err
	}
	s, err := newServer(append([]string{
		"--cluster-enabled", "yes",
		"--cluster-port", strconv.Itoa(bus),
		"--cluster-announce-ip", "127.0.0.1",
		"--cluster-node-timeout", "1000",
		"--cluster-allow-replica-migration", "no",
		"--repl-diskless-sync-delay", "0",
	}, args...))
	if err != nil {
		releasePort(bus)
		return err
	}
	s.bus = bus
	*nodes = append(*nodes, s)
	return nil
}

func (c *Cluster) assignSlots(ctx context.Context) error {
	for i, s := range c.masters {
		first := clusterSlots * i / clusterMasters
		last := clusterSlots*(i+1)/clusterMasters - 1
		if _, err := s.do(ctx, "CLUSTER", "ADDSLOTSRANGE", first, last); err != nil {
			return fmt.Errorf("redistest: assign slots: %w", err)
		}
	}
	// Different epochs from the start spare the nodes their resolution.
	for i, s := range c.nodes() {
		if _, err := s.do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1); err != nil {
			return fmt.Errorf("redistest: set config epoch: %w", err)
		}
	}
	return nil
}

// introduce makes each node known to each other.
func (c *Cluster) introduce(ctx context.Context) error {
	nodes := c.nodes()
	for i, s := range nodes {
		for _, other := range nodes[i+1:] {
			if _, err := s.do(ctx, "CLUSTER", "MEET", "127.0.0.1", other.port, other.bus); err != nil {
				return fmt.Errorf("redistest: meet: %w", err)
			}
		}
	}
	return poll(ctx, func() (bool, error) {
		for _, s := range nodes {
			info, err := s.clusterInfo(ctx)
			if err != nil {
				return false, err
			}
			if info["cluster_known_nodes"] != strconv.Itoa(len(nodes)) {
				return false, nil
			}
		}
		return true, nil
	})
}

func replicate(ctx context.Context, replica, master *Server) error {
	id, err := master.nodeID(ctx)
	if err != nil {
		return err
	}
	// A node that is still shaking hands is known, but not by its id.
	var last error
	err = poll(ctx, func() (bool, error) {
		_, last = replica.do(ctx, "CLUSTER", "REPLICATE", id)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("redistest: replicate: %w", errors.Join(err, last))
	}
	return nil
}

// WaitReady waits until all nodes that run see the cluster whole and all
// replicas among them follow their master, e.g. after a failover.
func (c *Cluster) WaitReady(ctx context.Context) error {
	var last error
	err := poll(ctx, func() (bool, error) {
		for _, s := range c.nodes() {
			if !s.proc.alive() {
				continue
			}
			if last = s.clusterReady(ctx); last != nil {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// Addrs returns the addresses of all nodes, masters first.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, s := range c.nodes() {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Masters returns the nodes that were started as masters.
func (c *Cluster) Masters() []*Server { return append([]*Server(nil), c.masters...) }

// Replicas returns the nodes that were started as replicas: the i-th as that
// of the i-th master.
func (c *Cluster) Replicas() []*Server { return append([]*Server(nil), c.replicas...) }

func (c *Cluster) nodes() []*Server { return append(c.Masters(), c.replicas...) }

// Options returns new client options for this cluster, for the caller to
// change, as [Server.Options] does. They have clients look at the cluster's
// state once a second: go-redis v9.23.0 does so once a minute, and until then
// goes on dialling a master that is dead and has been replaced.
func (c *Cluster) Options() *redis.ClusterOptions {
	return &redis.ClusterOptions{
		Addrs:                      c.Addrs(),
		ClusterStateReloadInterval: time.Second,
		DisableIdentity:            true,
		MaintNotificationsConfig:   noMaintNotifications(),
	}
}

// Client returns a new client of this cluster. Stop closes it if the caller
// has not.
func (c *Cluster) Client() *redis.ClusterClient {
	client := redis.NewClusterClient(c.Options())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, client)
	return client
}

// KillMaster kills the i-th of the nodes that were started as masters.
func (c *Cluster) KillMaster(i int) error { return c.masters[i].Kill() }

// Stop closes the clients made by [Cluster.Client] and stops all nodes.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	clients := c.clients
	c.clients = nil
	c.mu.Unlock()
	for _, client := range clients {
		_ = client.Close() // redis.ErrClosed if the caller closed it
	}
	return stopAll(c.nodes())
}

// stopAll stops servers at the same time.
func stopAll(servers []*Server) error {
	errs := make([]error, len(servers))
	var group sync.WaitGroup
	for i, s := range servers {
		group.Go(func() { errs[i] = s.Stop() })
	}
	group.Wait()
	return errors.Join(errs...)
}
