package memcached_test

import (
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/stampedeguard/stampede/lock"
	"github.com/stampedeguard/stampede/lock/backends/memcached"
	"github.com/stampedeguard/stampede/lock/locktest"
)

// server starts memcached, which must be installed.
func server(t *testing.T) *memcache.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr)
	_ = l.Close()
	cmd := exec.Command("memcached", "-l", "127.0.0.1", "-p", fmt.Sprint(addr.Port), "-U", "0", "-u", "nobody")
	if err := cmd.Start(); err != nil {
		t.Fatalf("memcached does not start (is it installed?): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	c := memcache.New(addr.String())
	c.Timeout, c.MaxIdleConns = 5*time.Second, 16
	t.Cleanup(func() { _ = c.Close() })
	for began := time.Now(); c.Ping() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatal("memcached does not answer")
		}
	}
	return c
}

func TestMemcachedKeepsContract(t *testing.T) {
	client, n := server(t), 0
	locktest.Run(t, locktest.Features{Fences: true}, func(*testing.T) func() lock.Backend {
		n++
		prefix := fmt.Sprint("test", n)
		return func() lock.Backend { return memcached.New(client, prefix) }
	})
}

// memcached takes an expiry of more than 30 days for a date, which has passed.
func TestLongTTLIsRefused(t *testing.T) {
	const long = 30 * 24 * time.Hour
	b := memcached.New(server(t), "test")
	r := lock.Request{Name: "n", ID: lock.ID{1}, TTL: long, Holders: 1}
	if g, err := b.Acquire(t.Context(), r); err == nil {
		t.Errorf("Acquire for %v: %+v", r.TTL, g)
	}
	r.TTL = long - time.Second
	if g, err := b.Acquire(t.Context(), r); err != nil || !g.OK {
		t.Fatalf("Acquire for %v: %+v, %v", r.TTL, g, err)
	}
	if ok, err := b.Extend(t.Context(), lock.Hold{Name: "n", ID: r.ID, Holders: 1, TTL: long}); ok || err == nil {
		t.Errorf("Extend by %v: %v, %v", long, ok, err)
	}
	r.ID = lock.ID{2}
	if g, err := b.Acquire(t.Context(), r); g.OK || err != nil {
		t.Errorf("Acquire of a held lock: %+v, %v", g, err)
	}
}

// A server has forgotten the locks of a Locker, and another one with a shorter TTL asks first.
func TestForgetfulServerAbstainsForEachTTL(t *testing.T) {
	client := server(t)
	b := memcached.New(client, "test")
	vote := func(ttl time.Duration) lock.Grant {
		t.Helper()
		g, err := b.Acquire(t.Context(), lock.Request{Name: ttl.String(), ID: lock.ID{1}, TTL: ttl, Holders: 1, Vote: true})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	const short = 100 * time.Millisecond
	for began := time.Now(); !vote(short).OK; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatal("the server does not vote")
		}
	}
	if g := vote(time.Minute); !g.Abstains {
		t.Errorf("a server that started a moment ago votes for a lock of a minute: %+v", g)
	}
}
