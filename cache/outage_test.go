package cache_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/cache/cachetest"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// storeCalls are the calls of a store that ask Redis, and what each returns.
func storeCalls(t *testing.T, s cache.Store) map[string]func() error {
	ctx := t.Context()
	tagged := entryOf("v", time.Minute)
	tagged.Tags = []string{"t"}
	return map[string]func() error{
		"Read":     func() error { _, err := s.Read(ctx, "k"); return err },
		"ReadMany": func() error { return cachetest.ReadMany(ctx, s, []string{"a", "b"})[1].Err },
		"Acquire":  func() error { _, err := s.Acquire(ctx, "k", lasting()); return err },
		"AcquireMany": func() error {
			return s.AcquireMany(ctx, []cache.Request{{Key: "a", Ask: lasting()}, {Key: "b", Ask: lasting()}})[1].Err
		},
		"Stamp": func() error { _, err := s.Stamp(ctx); return err },
		"Fill": func() error {
			_, err := s.Fill(ctx, cache.NewLease("k", cache.Token{1}), entryOf("v", time.Minute))
			return err
		},
		"Fail":    func() error { _, err := s.Fail(ctx, cache.NewLease("k", cache.Token{1}), nil, 0); return err },
		"Release": func() error { return s.Release(ctx, cache.NewLease("k", cache.Token{1})) },
		"ReturnMany": func() error {
			return s.ReturnMany(ctx, []cache.Return{{Lease: cache.NewLease("k", cache.Token{1})}})[0].Err
		},
		"Set":         func() error { return s.Set(ctx, "k", entryOf("v", time.Minute)) },
		"Set, tagged": func() error { return s.Set(ctx, "k", tagged) },
		"Delete":      func() error { return s.Delete(ctx, "k") },
		"Expire":      func() error { return s.Expire(ctx, "k") },
		"Reset":       func() error { return s.Reset(ctx, "k") },
		"DeleteTag":   func() error { return s.DeleteTag(ctx, "t") },
		"ExpireTag":   func() error { return s.ExpireTag(ctx, "t") },
	}
}

// silentServer accepts connections, and answers nothing on them.
func silentServer(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return l.Addr().String()
}

// Nobody listens there. That is not in what the client's own error says when a call
// is given up.
const nobody = "127.0.0.1:1"

// The first calls get no answer in time; those after them find the breaker open.
func TestErrorsSayWhichRedisIsAwayAndWhy(t *testing.T) {
	silent := silentServer(t)
	for name, c := range map[string]struct {
		client redis.UniversalClient
		want   []string
	}{
		"refused": {redis.NewClient(&redis.Options{Addr: nobody}), []string{nobody, "connection refused"}},
		"silent":  {redis.NewClient(&redis.Options{Addr: silent}), []string{silent, "accepts connections"}},
		"cluster": {redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nobody}}), []string{nobody, "connection refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			events := make(chan cache.Event, 100)
			s, err := cache.NewRedis(c.client, cache.Options{
				Namespace: "test", RedisTimeout: 100 * time.Millisecond,
				Observer: observing(func(e cache.Event) { events <- e }),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer c.client.Close()
			defer s.Close()
			says := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, cache.ErrUnavailable) {
					t.Errorf("%s: error %v, want ErrUnavailable", what, err)
					return
				}
				for _, part := range c.want { // which may have to be found out yet
					for end := time.Now().Add(10 * time.Second); !strings.Contains(err.Error(), part); time.Sleep(5 * time.Millisecond) {
						if time.Now().After(end) {
							t.Fatalf("%s: error %v, want one that says %q", what, err, part)
						}
					}
				}
			}
			for range 2 {
				for name, call := range storeCalls(t, s) {
					says(name, call())
				}
			}
			if name == "cluster" {
				return // it has no nodes yet
			}
			for e := range events {
				if e.Kind == cache.BreakerOpened {
					says("the event", e.Err)
					break
				}
			}
		})
	}
}

// What ailed the node before is over.
func TestNextOutageNamesItsOwnCause(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	c := &changes{}
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test", RedisTimeout: time.Second, Observer: c})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read := func() error { _, err := s.Read(t.Context(), "k"); return err }
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { err := read(); return err != nil && strings.Contains(err.Error(), "connection refused") })
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return read() == nil })
	if err := server.Pause(); err != nil { // from now on it accepts connections, and is silent
		t.Fatal(err)
	}
	err = read()
	if err == nil || strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v", err)
	}
	eventually(t, func() bool { return strings.Contains(err.Error(), "accepts connections") })
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}

// A refusal is named by the node that gave it, too.
func TestRefusalsNameTheirNode(t *testing.T) {
	client := redistest.RunEmbedded(t).Client()
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := client.HSet(t.Context(), "test:{k}:lease", "a", "b").Err(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Acquire(t.Context(), "k", lasting())
	if !errors.Is(err, cache.ErrRefused) || !strings.Contains(err.Error(), client.Options().Addr) {
		t.Errorf("error %v", err)
	}
}
