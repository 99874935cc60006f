package main

import (
	"context"
	"errors"
	"os/exec"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A server is a Redis that can be taken away and given back.
type server struct {
	options *redis.Options
	away    func() error
	back    func() error
	stop    func() error
}

// startServer starts redis-server if it is installed, else an embedded server behind a proxy.
func (cfg *config) startServer(ctx context.Context) (*server, error) {
	if _, err := exec.LookPath("redis-server"); err == nil && !cfg.embedded {
		return cfg.startReal(ctx)
	}
	return cfg.startEmbedded()
}

func (cfg *config) startReal(ctx context.Context) (*server, error) {
	s, err := redistest.StartStandalone(ctx, redistest.StandaloneConfig{})
	if err != nil {
		return nil, err
	}
	srv := &server{options: s.Options(), stop: s.Stop, away: s.Pause, back: s.Resume}
	if cfg.fault == "kill" {
		srv.away, srv.back = s.Kill, func() error { return s.RestartEmpty(ctx) }
	}
	return srv, nil
}

func (cfg *config) startEmbedded() (*server, error) {
	e, err := redistest.StartEmbedded()
	if err != nil {
		return nil, err
	}
	p, err := redistest.StartProxy(e.Options().Addr)
	if err != nil {
		return nil, errors.Join(err, e.Stop())
	}
	srv := &server{
		options: p.Options(), away: p.Blackhole, back: p.Restore,
		stop: func() error { return errors.Join(p.Stop(), e.Stop()) },
	}
	if cfg.fault == "kill" {
		srv.away = func() error { p.Cut(); return nil }
		srv.back = func() error { e.FlushAll(); return p.Restore() }
	}
	return srv, nil
}
