package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// master draws one of the masters.
func (n *nemesis) master(ctx context.Context) (*redistest.Server, error) {
	masters, err := n.topo.masters(ctx)
	if err != nil {
		return nil, err
	}
	return masters[n.rng.IntN(len(masters))], nil
}

// everyMaster carries a command out on all of them.
func (n *nemesis) everyMaster(ctx context.Context, do func(*redis.Client) error) error {
	masters, err := n.topo.masters(ctx)
	for _, m := range masters {
		err = errors.Join(err, ask(m, do))
	}
	return err
}

// pauseServer stays below the second after which masters are replaced.
func (n *nemesis) pauseServer(ctx context.Context) (string, error) {
	m, err := n.master(ctx)
	if err != nil {
		return "", err
	}
	d := 200*time.Millisecond + upTo(n.rng, 500*time.Millisecond)
	if err := m.Pause(); err != nil {
		return "", err
	}
	wait(ctx, d)
	return fmt.Sprintf("%s for %v", m.Addr(), d.Round(time.Millisecond)), m.Resume()
}

func (n *nemesis) restart(ctx context.Context) (string, error) {
	m, err := n.master(ctx)
	if err != nil {
		return "", err
	}
	how := "in order"
	if n.rng.IntN(2) == 0 {
		how = "killed"
		if err := m.Kill(); err != nil {
			return "", err
		}
		wait(ctx, upTo(n.rng, 700*time.Millisecond))
	}
	return m.Addr() + ", " + how, errors.Join(m.Restart(ctx), n.reinstate(ctx, m))
}

func (n *nemesis) restartEmpty(ctx context.Context) (string, error) {
	m, err := n.master(ctx)
	if err != nil {
		return "", err
	}
	return m.Addr(), errors.Join(m.RestartEmpty(ctx), n.reinstate(ctx, m))
}

// reinstate makes a restarted server the master that it was. The one that began
// as the replica has it on its command line that it is one.
func (n *nemesis) reinstate(ctx context.Context, m *redistest.Server) error {
	if n.Topology != Sentinel {
		return nil
	}
	// It refuses while it loads its data.
	return until(ctx, m.Addr()+" to be a master again", func() error {
		return ask(m, func(r *redis.Client) error { return r.Do(ctx, "REPLICAOF", "NO", "ONE").Err() })
	})
}

// severalTimes does something to all masters every now and then for a while.
func (n *nemesis) severalTimes(ctx context.Context, do func(*redis.Client) error) (string, error) {
	times := 3 + n.rng.IntN(5)
	for range times {
		if err := n.everyMaster(ctx, do); err != nil {
			return "", err
		}
		wait(ctx, 100*time.Millisecond+upTo(n.rng, 400*time.Millisecond))
	}
	return fmt.Sprintf("%d times", times), nil
}

func (n *nemesis) scriptFlush(ctx context.Context) (string, error) {
	return n.severalTimes(ctx, func(r *redis.Client) error { return r.ScriptFlush(ctx).Err() })
}

func (n *nemesis) killPubSub(ctx context.Context) (string, error) {
	return n.severalTimes(ctx, func(r *redis.Client) error {
		return r.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub").Err()
	})
}

const junk = "chaos-junk:"

// fill writes junk past the limit of a server, and reports the error that stopped it.
func fill(ctx context.Context, r *redis.Client, from, bytes int) error {
	const size = 16 << 10
	for i := range bytes / size {
		err := r.Set(ctx, junk+strconv.Itoa(from+i), strings.Repeat("j", size), 0).Err()
		if err != nil && !strings.HasPrefix(err.Error(), "MOVED ") {
			return err
		}
	}
	return nil
}

// limit sets maxmemory a little above the memory in use.
func limit(ctx context.Context, r *redis.Client, policy string, used string) error {
	bytes, err := strconv.Atoi(used)
	if err != nil {
		return err
	}
	return errors.Join(
		r.ConfigSet(ctx, "maxmemory-policy", policy).Err(),
		r.ConfigSet(ctx, "maxmemory", strconv.Itoa(bytes+(512<<10))).Err(),
	)
}

// full limits all masters, keeps filling them for a while and takes it all back.
func (n *nemesis) full(ctx context.Context, policy string) (string, error) {
	masters, err := n.topo.masters(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range masters {
		state, err := info(ctx, m, "memory")
		if err != nil {
			return "", err
		}
		if err := ask(m, func(r *redis.Client) error { return limit(ctx, r, policy, state["used_memory"]) }); err != nil {
			return "", err
		}
	}
	refused := 0
	end := time.Now().Add(time.Second + upTo(n.rng, 2*time.Second))
	for at := 0; time.Now().Before(end) && ctx.Err() == nil; at += 128 {
		for _, m := range masters {
			if err := ask(m, func(r *redis.Client) error { return fill(ctx, r, at, 1<<20) }); redis.IsOOMError(err) {
				refused++
			}
		}
		wait(ctx, 50*time.Millisecond)
	}
	text := fmt.Sprintf("%s, OOM %d times", policy, refused)
	for _, m := range masters {
		err = errors.Join(err, ask(m, func(r *redis.Client) error { return empty(ctx, r) }))
	}
	return text, err
}

func empty(ctx context.Context, r *redis.Client) error {
	err := errors.Join(
		r.ConfigSet(ctx, "maxmemory", "0").Err(),
		r.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err(),
	)
	keys := r.Scan(ctx, 0, junk+"*", 1000).Iterator()
	for keys.Next(ctx) {
		err = errors.Join(err, r.Unlink(ctx, keys.Val()).Err())
	}
	return errors.Join(err, keys.Err())
}

func (n *nemesis) fullNoEviction(ctx context.Context) (string, error) {
	return n.full(ctx, "noeviction")
}

func (n *nemesis) fullLRU(ctx context.Context) (string, error) { return n.full(ctx, "allkeys-lru") }

func (n *nemesis) failover(ctx context.Context) (string, error) {
	s := n.topo.(sentinel)
	old, err := s.Master(ctx)
	if err != nil {
		return "", err
	}
	return "from " + old.Addr(), s.Failover(ctx)
}

func (n *nemesis) killMaster(ctx context.Context) (string, error) {
	if s, ok := n.topo.(sentinel); ok {
		old, err := s.KillMaster(ctx)
		if err != nil {
			return "", err
		}
		_, err = s.WaitNewMaster(ctx, old)
		return old.Addr(), errors.Join(err, old.Restart(ctx))
	}
	c := n.topo.(cluster)
	i := n.rng.IntN(len(c.Masters()))
	old, replica := c.Masters()[i], c.Replicas()[i]
	if err := c.KillMaster(i); err != nil {
		return "", err
	}
	err := until(ctx, "the replica to take over", func() error {
		state, err := replication(ctx, replica)
		if err == nil && state["role"] != "master" {
			err = errors.New("it has not")
		}
		return err
	})
	wait(ctx, upTo(n.rng, time.Second))
	return old.Addr(), errors.Join(err, old.Restart(ctx))
}

// moveSlots moves slots that hold keys just now to another master, and some of
// them back. A move that is interrupted, as by a failover that the machine's load
// has caused, is ended by the recovery.
func (n *nemesis) moveSlots(ctx context.Context) (string, error) {
	c := n.topo.(cluster)
	masters := c.Masters()
	moved, keys := 0, 0
	for range 3 + n.rng.IntN(5) {
		from := n.rng.IntN(len(masters))
		to := (from + 1 + n.rng.IntN(len(masters)-1)) % len(masters)
		var key string
		err := ask(masters[from], func(r *redis.Client) (err error) {
			key, err = r.RandomKey(ctx).Result()
			return err
		})
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return "", err
		}
		slot, err := c.Slot(ctx, key)
		if err != nil {
			return "", err
		}
		interrupted := func(err error) (string, error) {
			return fmt.Sprintf("%d moves of %d slots, and one that was interrupted: %v", moved, keys, err), nil
		}
		if err := n.moveSlot(ctx, c, slot, from, to); err != nil {
			return interrupted(err)
		}
		moved++
		keys++
		if n.rng.IntN(2) == 0 {
			wait(ctx, upTo(n.rng, 500*time.Millisecond))
			if err := n.moveSlot(ctx, c, slot, to, from); err != nil {
				return interrupted(err)
			}
			moved++
		}
	}
	return fmt.Sprintf("%d moves of %d slots", moved, keys), nil
}

// moveSlot leaves the slot open for a while before its keys go, sometimes.
func (n *nemesis) moveSlot(ctx context.Context, c cluster, slot, from, to int) error {
	if n.rng.IntN(2) == 0 {
		if err := c.OpenSlot(ctx, slot, from, to); err != nil {
			return err
		}
		wait(ctx, upTo(n.rng, 400*time.Millisecond))
	}
	return c.MoveSlot(ctx, slot, from, to)
}
