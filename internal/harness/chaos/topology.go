package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// The kinds of Redis.
const (
	Standalone = "standalone"
	Sentinel   = "sentinel"
	Cluster    = "cluster"
)

// A topology is a Redis, of one kind, with the operations of the nemesis.
type topology interface {
	// addrs are where clients start from, all those they may ever be sent to.
	addrs() (seeds, all []string)
	servers() []*redistest.Server // those that hold data
	masters(ctx context.Context) ([]*redistest.Server, error)
	// recovered waits until it is as it was started, as far as that goes.
	recovered(ctx context.Context) error
	stop() error
}

// durable has a server append each write to its file before it answers, so that
// killing it loses nothing that it acknowledged. No fsync: the machine lives on.
// (appendfsync everysec may put a write off behind a slow fsync.)
var durable = []string{"--appendonly", "yes", "--appendfsync", "no"}

func startTopology(ctx context.Context, name string) (topology, error) {
	switch name {
	case Standalone:
		s, err := redistest.StartStandalone(ctx, redistest.StandaloneConfig{Args: durable})
		return standalone{s}, err
	case Sentinel:
		s, err := redistest.StartSentinel(ctx, redistest.SentinelConfig{Args: durable})
		return sentinel{s}, err
	case Cluster:
		c, err := redistest.StartCluster(ctx, redistest.ClusterConfig{Replicas: true, Args: durable})
		return cluster{c}, err
	}
	return nil, fmt.Errorf("chaos: there is no topology %q", name)
}

type standalone struct{ *redistest.Server }

func (s standalone) addrs() (seeds, all []string) { return []string{s.Addr()}, []string{s.Addr()} }

func (s standalone) servers() []*redistest.Server { return []*redistest.Server{s.Server} }

func (s standalone) masters(context.Context) ([]*redistest.Server, error) { return s.servers(), nil }

func (s standalone) recovered(context.Context) error { return nil }

func (s standalone) stop() error { return s.Stop() }

type sentinel struct{ *redistest.Sentinel }

func (s sentinel) addrs() (seeds, all []string) {
	all = s.Addrs()
	for _, server := range s.Servers() {
		all = append(all, server.Addr())
	}
	return s.Addrs(), all
}

func (s sentinel) servers() []*redistest.Server { return s.Servers() }

func (s sentinel) masters(ctx context.Context) ([]*redistest.Server, error) {
	m, err := s.Master(ctx)
	return []*redistest.Server{m}, err
}

// recovered waits until the other server follows the master. The sentinels see
// to that some ten seconds after a failover.
func (s sentinel) recovered(ctx context.Context) error {
	return until(ctx, "the replica to follow the master", func() error {
		master, err := s.Master(ctx)
		if err != nil {
			return err
		}
		for _, server := range s.Servers() {
			if server == master {
				continue
			}
			if err := follows(ctx, server, master); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s sentinel) stop() error { return s.Stop() }

type cluster struct{ *redistest.Cluster }

func (c cluster) addrs() (seeds, all []string) { return c.Addrs(), c.Addrs() }

func (c cluster) servers() []*redistest.Server { return append(c.Masters(), c.Replicas()...) }

func (c cluster) masters(ctx context.Context) ([]*redistest.Server, error) {
	var masters []*redistest.Server
	for _, s := range c.servers() {
		role, err := replication(ctx, s)
		if err == nil && role["role"] == "master" {
			masters = append(masters, s)
		}
	}
	if len(masters) == 0 {
		return nil, errors.New("chaos: the cluster has no master")
	}
	return masters, nil
}

// recovered settles the slots, completing or undoing moves that were interrupted,
// and gives the slots of a master that was replaced back to it.
func (c cluster) recovered(ctx context.Context) error {
	if err := c.Heal(ctx); err != nil {
		return err
	}
	replicas := c.Replicas()
	for i, m := range c.Masters() {
		err := until(ctx, fmt.Sprintf("%s to be a master again", m.Addr()), func() error {
			state, err := replication(ctx, m)
			if err != nil || state["role"] == "master" {
				return errors.Join(err, follows(ctx, replicas[i], m))
			}
			err = ask(m, func(r *redis.Client) error { return r.Do(ctx, "CLUSTER", "FAILOVER").Err() })
			wait(ctx, 300*time.Millisecond)
			return errors.Join(errors.New("it is a replica"), err)
		})
		if err != nil {
			return err
		}
	}
	if err := c.Heal(ctx); err != nil {
		return err
	}
	return c.WaitReady(ctx)
}

func (c cluster) stop() error { return c.Stop() }

// follows says why a server is not a replica in step with its master.
func follows(ctx context.Context, server, master *redistest.Server) error {
	state, err := replication(ctx, server)
	if err != nil {
		return err
	}
	if state["role"] != "slave" || state["master_link_status"] != "up" || !strings.HasSuffix(master.Addr(), ":"+state["master_port"]) {
		return fmt.Errorf("%s does not follow %s", server.Addr(), master.Addr())
	}
	return nil
}

func replication(ctx context.Context, s *redistest.Server) (map[string]string, error) {
	return info(ctx, s, "replication")
}

func info(ctx context.Context, s *redistest.Server, section string) (map[string]string, error) {
	var text string
	err := ask(s, func(r *redis.Client) (err error) {
		text, err = r.Info(ctx, section).Result()
		return err
	})
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[k] = v
		}
	}
	return fields, err
}

// ask uses a connection of its own, past all proxies.
func ask(s *redistest.Server, do func(*redis.Client) error) error {
	opts := s.Options()
	opts.MaxRetries, opts.DialerRetries, opts.PoolSize, opts.ContextTimeoutEnabled = -1, 1, 1, true
	r := redis.NewClient(opts)
	defer r.Close()
	return do(r)
}

// until tries until it succeeds.
func until(ctx context.Context, what string, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		if !wait(ctx, 50*time.Millisecond) {
			return fmt.Errorf("chaos: waiting for %s: %w", what, errors.Join(context.Cause(ctx), err))
		}
	}
}

// wait reports whether the time has passed before the context ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// upTo draws a duration from zero to less than d.
func upTo(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
