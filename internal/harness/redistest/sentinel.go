package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// MasterName is the name under which the sentinels know their master.
const MasterName = "stampede"

const sentinels = 3

// SentinelConfig sets up a master, its replica and their sentinels. The zero
// value is ready.
type SentinelConfig struct {
	// Args are further arguments for the master and the replica.
	Args []string
}

// Sentinel is a master and a replica watched by three sentinels, two of which
// must agree. They hold a server dead after a second of silence. Its methods
// may be called from any goroutine, but those that change the master not at
// the same time.
type Sentinel struct {
	servers   []*Server // the first began as master
	sentinels []*Server

	mu      sync.Mutex // guards clients
	clients []*redis.Client
}

// StartSentinel starts the servers and returns once each sentinel knows the
// master, the replica and the other sentinels, so that a failover can succeed.
func StartSentinel(ctx context.Context, cfg SentinelConfig) (*Sentinel, error) {
	return retryPorts(ctx, func(ctx context.Context) (*Sentinel, error) {
		s := &Sentinel{}
		if err := s.start(ctx, cfg); err != nil {
			return nil, errors.Join(err, s.Stop())
		}
		return s, nil
	})
}

func (s *Sentinel) start(ctx context.Context, cfg SentinelConfig) error {
	args := append([]string{"--repl-diskless-sync-delay", "0"}, cfg.Args...)
	for i := range 2 {
		if i == 1 {
			args = append(args, "--replicaof", "127.0.0.1", strconv.Itoa(s.servers[0].port))
		}
		server, err := newServer(args)
		if err != nil {
			return err
		}
		s.servers = append(s.servers, server)
		if err := server.start(ctx); err != nil {
			return err
		}
	}
	// Sentinels look for replicas when they first see the master and then only
	// every ten seconds: the replica must be there before them.
	err := poll(ctx, func() (bool, error) {
		err := s.servers[1].replicaReady(ctx)
		if errors.Is(err, errNotSynced) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	for range sentinels {
		sentinel, err := newSentinel(s.servers[0].port)
		if err != nil {
			return err
		}
		s.sentinels = append(s.sentinels, sentinel)
		if err := sentinel.start(ctx); err != nil {
			return err
		}
	}
	return s.waitAcquainted(ctx)
}

// newSentinel prepares a sentinel. It needs a file for its configuration, which
// it rewrites; redis-server --sentinel is the same program as redis-sentinel.
func newSentinel(masterPort int) (*Server, error) {
	s, err := newServer(nil)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, "sentinel.conf")
	config := strings.Join([]string{
		"port " + strconv.Itoa(s.port),
		"bind 127.0.0.1",
		"dir " + strconv.Quote(s.dir),
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", MasterName, masterPort),
		"sentinel down-after-milliseconds " + MasterName + " 1000",
		"sentinel failover-timeout " + MasterName + " 3000",
	}, "\n") + "\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("redistest: sentinel configuration: %w", err), s.Stop())
	}
	s.proc.args = []string{file, "--sentinel"}
	return s, nil
}

// waitAcquainted waits until each sentinel knows all others and the replica.
func (s *Sentinel) waitAcquainted(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		for _, sentinel := range s.sentinels {
			state, err := sentinel.masterState(ctx)
			if err != nil {
				return false, err
			}
			if state["num-slaves"] != "1" || state["num-other-sentinels"] != strconv.Itoa(sentinels-1) ||
				state["flags"] != "master" {
				return false, nil
			}
		}
		return true, nil
	})
}

// masterState returns a sentinel's view of the master.
func (s *Server) masterState(ctx context.Context) (map[string]string, error) {
	client := redis.NewSentinelClient(s.controlOptions())
	defer client.Close()
	state, err := client.Master(ctx, MasterName).Result()
	if err != nil {
		return nil, fmt.Errorf("redistest: sentinel master: %w", err)
	}
	return state, nil
}

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() []string {
	var addrs []string
	for _, sentinel := range s.sentinels {
		addrs = append(addrs, sentinel.Addr())
	}
	return addrs
}

// Servers returns the two servers; the first began as master.
func (s *Sentinel) Servers() []*Server { return slices.Clone(s.servers) }

// Sentinels returns the sentinels' processes.
func (s *Sentinel) Sentinels() []*Server { return slices.Clone(s.sentinels) }

// Options returns new client options, for the caller to change, as
// [Server.Options] does.
func (s *Sentinel) Options() *redis.FailoverOptions {
	return &redis.FailoverOptions{
		MasterName:      MasterName,
		SentinelAddrs:   s.Addrs(),
		DisableIdentity: true,
	}
}

// Client returns a new client that follows the master. Stop closes it if the
// caller has not.
func (s *Sentinel) Client() *redis.Client {
	client := redis.NewFailoverClient(s.Options())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = append(s.clients, client)
	return client
}

// Master returns the server that the sentinels agree on as master.
func (s *Sentinel) Master(ctx context.Context) (*Server, error) {
	return s.waitMaster(ctx, nil)
}

// WaitNewMaster waits until all sentinels agree on a master other than old,
// and that server knows that it is master.
func (s *Sentinel) WaitNewMaster(ctx context.Context, old *Server) (*Server, error) {
	return s.waitMaster(ctx, old)
}

func (s *Sentinel) waitMaster(ctx context.Context, not *Server) (master *Server, err error) {
	err = poll(ctx, func() (bool, error) {
		master, err = s.agreed(ctx)
		if err != nil || master == nil || master == not || !master.proc.alive() {
			return false, err
		}
		info, err := master.info(ctx, "replication")
		return err == nil && info["role"] == "master", err
	})
	if err != nil {
		return nil, fmt.Errorf("redistest: wait for a master: %w", err)
	}
	return master, nil
}

// agreed returns the server that all running sentinels name as master, or nil
// while they do not agree.
func (s *Sentinel) agreed(ctx context.Context) (*Server, error) {
	var named string
	for _, sentinel := range s.sentinels {
		if !sentinel.proc.alive() {
			continue
		}
		state, err := sentinel.masterState(ctx)
		if err != nil {
			return nil, err
		}
		addr := net.JoinHostPort(state["ip"], state["port"])
		if named != "" && named != addr {
			return nil, nil
		}
		named = addr
	}
	for _, server := range s.servers {
		if server.Addr() == named {
			return server, nil
		}
	}
	return nil, nil
}

// Failover makes the replica master and waits until that is so. The old master
// keeps running and is made a replica some time after; until then a second
// Failover waits for it.
func (s *Sentinel) Failover(ctx context.Context) error {
	old, err := s.Master(ctx)
	if err != nil {
		return err
	}
	err = poll(ctx, func() (bool, error) {
		_, err := s.sentinels[0].do(ctx, "SENTINEL", "FAILOVER", MasterName)
		if err != nil && (redis.HasErrorPrefix(err, "NOGOODSLAVE") || redis.HasErrorPrefix(err, "INPROG")) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("redistest: failover: %w", err)
	}
	_, err = s.WaitNewMaster(ctx, old)
	return err
}

// KillMaster kills the present master and returns it. The sentinels then make
// the replica master: see [Sentinel.WaitNewMaster].
func (s *Sentinel) KillMaster(ctx context.Context) (*Server, error) {
	master, err := s.Master(ctx)
	if err != nil {
		return nil, err
	}
	return master, master.Kill()
}

// Stop closes the clients made by [Sentinel.Client] and stops all servers.
func (s *Sentinel) Stop() error {
	s.mu.Lock()
	clients := s.clients
	s.clients = nil
	s.mu.Unlock()
	for _, client := range clients {
		_ = client.Close() // redis.ErrClosed if the caller closed it
	}
	return stopAll(append(s.Sentinels(), s.servers...))
}
