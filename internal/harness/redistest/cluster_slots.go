package redistest

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// MasterFor returns the node that serves a key now: a master as started, or
// the replica that has taken its place.
func (c *Cluster) MasterFor(ctx context.Context, key string) (*Server, error) {
	slot, err := c.Slot(ctx, key)
	if err != nil {
		return nil, err
	}
	via, err := c.anyAlive()
	if err != nil {
		return nil, err
	}
	control := via.control()
	defer control.Close()
	shards, err := control.ClusterShards(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("redistest: cluster shards: %w", err)
	}
	for _, shard := range shards {
		if !hasSlot(shard, slot) {
			continue
		}
		for _, node := range shard.Nodes {
			if s := c.node(node.Port); s != nil && node.Role == "master" && node.Health == "online" {
				return s, nil
			}
		}
	}
	return nil, fmt.Errorf("redistest: no node serves slot %d", slot)
}

func hasSlot(shard redis.ClusterShard, slot int) bool {
	for _, r := range shard.Slots {
		if int64(slot) >= r.Start && int64(slot) <= r.End {
			return true
		}
	}
	return false
}

// node returns the node that listens on a port, or nil.
func (c *Cluster) node(port int64) *Server {
	for _, s := range c.nodes() {
		if int64(s.port) == port {
			return s
		}
	}
	return nil
}

// Slot returns the hash slot of a key.
func (c *Cluster) Slot(ctx context.Context, key string) (int, error) {
	via, err := c.anyAlive()
	if err != nil {
		return 0, err
	}
	control := via.control()
	defer control.Close()
	slot, err := control.ClusterKeySlot(ctx, key).Result()
	return int(slot), err
}

func (c *Cluster) anyAlive() (*Server, error) {
	for _, s := range c.nodes() {
		if s.proc.alive() {
			return s, nil
		}
	}
	return nil, errNotRunning
}

// OpenSlot begins to move a slot between two masters and leaves it there: a
// client that asks the old one for a key it does not hold is sent to the new
// one by an ASK redirection. [Cluster.MoveSlot] completes the move.
func (c *Cluster) OpenSlot(ctx context.Context, slot, from, to int) error {
	source, target := c.masters[from], c.masters[to]
	sourceID, err := source.nodeID(ctx)
	if err != nil {
		return err
	}
	targetID, err := target.nodeID(ctx)
	if err != nil {
		return err
	}
	// In this order, so that no client is sent to a node that turns it away
	// (https://redis.io/docs/latest/commands/cluster-setslot/).
	if err := setSlot(ctx, slot, target, "IMPORTING", sourceID); err != nil {
		return err
	}
	return setSlot(ctx, slot, source, "MIGRATING", targetID)
}

// MoveSlot moves a slot and its keys between two masters, by their place in
// [Cluster.Masters]. Clients are not told: they learn it from a MOVED
// redirection. All running nodes know the new owner when MoveSlot returns.
func (c *Cluster) MoveSlot(ctx context.Context, slot, from, to int) error {
	if err := c.OpenSlot(ctx, slot, from, to); err != nil {
		return err
	}
	if err := moveKeys(ctx, slot, c.masters[from], c.masters[to]); err != nil {
		return err
	}
	id, err := c.masters[to].nodeID(ctx)
	if err != nil {
		return err
	}
	// The new owner must know first: it may not learn it from anyone else.
	owners := append([]*Server{c.masters[to], c.masters[from]}, c.masters...)
	for _, s := range owners {
		if !s.proc.alive() {
			continue
		}
		if err := setSlot(ctx, slot, s, "NODE", id); err != nil {
			return err
		}
	}
	return c.agree(ctx)
}

func moveKeys(ctx context.Context, slot int, source, target *Server) error {
	control := source.control()
	defer control.Close()
	for {
		keys, err := control.ClusterGetKeysInSlot(ctx, slot, 100).Result()
		if err != nil {
			return fmt.Errorf("redistest: keys in slot %d: %w", slot, err)
		}
		if len(keys) == 0 {
			return nil
		}
		args := []any{"MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "REPLACE", "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		if err := control.Do(ctx, args...).Err(); err != nil {
			return fmt.Errorf("redistest: migrate slot %d: %w", slot, err)
		}
	}
}

// nodeID returns a node's name in the cluster.
func (s *Server) nodeID(ctx context.Context) (string, error) {
	reply, err := s.do(ctx, "CLUSTER", "MYID")
	if err != nil {
		return "", fmt.Errorf("redistest: node id: %w", err)
	}
	return fmt.Sprint(reply), nil
}

func (s *Server) clusterInfo(ctx context.Context) (map[string]string, error) {
	reply, err := s.do(ctx, "CLUSTER", "INFO")
	if err != nil {
		return nil, fmt.Errorf("redistest: cluster info: %w", err)
	}
	return infoFields(fmt.Sprint(reply)), nil
}

// clusterReady says why a node does not yet see the cluster whole.
func (s *Server) clusterReady(ctx context.Context) error {
	cluster, err := s.clusterInfo(ctx)
	if err != nil {
		return err
	}
	if cluster["cluster_state"] != "ok" || cluster["cluster_slots_ok"] != fmt.Sprint(clusterSlots) {
		return fmt.Errorf("redistest: %s: cluster state %s with %s slots",
			s.Addr(), cluster["cluster_state"], cluster["cluster_slots_ok"])
	}
	return s.replicaReady(ctx)
}

var errNotSynced = errors.New("redistest: replica does not follow its master yet")

// replicaReady returns errNotSynced for a replica without a link to its master.
func (s *Server) replicaReady(ctx context.Context) error {
	info, err := s.info(ctx, "replication")
	if err != nil {
		return err
	}
	if info["role"] == "slave" && info["master_link_status"] != "up" {
		return errNotSynced
	}
	return nil
}
