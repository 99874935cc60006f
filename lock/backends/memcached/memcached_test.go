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
