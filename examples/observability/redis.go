package main

import (
	"context"
	"os/exec"
	"sync"

	"github.com/alicebob/miniredis/v2"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A redisServer is a redis-server of its own or, where none is installed, an embedded one.
type redisServer struct {
	addr     string
	embedded bool
	stop     func()
	kill     func() error
	restart  func(context.Context) error

	mu sync.Mutex
	up bool
}

func startRedis(ctx context.Context) (*redisServer, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true) // entries expire as time passes, as in Redis
		if err := m.Start(); err != nil {
			return nil, err
		}
		return &redisServer{
			addr: m.Addr(), embedded: true, up: true, stop: m.Close,
			kill:    func() error { m.Close(); return nil },
			restart: func(context.Context) error { return m.Restart() },
		}, nil
	}
	s, err := redistest.StartStandalone(ctx, redistest.StandaloneConfig{})
	if err != nil {
		return nil, err
	}
	return &redisServer{addr: s.Addr(), up: true, stop: func() { _ = s.Stop() }, kill: s.Kill, restart: s.Restart}, nil
}

// set kills the server or starts it again.
func (r *redisServer) set(ctx context.Context, up bool) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.up && !up:
		err = r.kill()
	case !r.up && up:
		err = r.restart(ctx)
	}
	r.up = up
	return err
}
