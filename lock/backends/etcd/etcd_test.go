package etcd_test

import (
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stampedeguard/stampede/lock"
	"github.com/stampedeguard/stampede/lock/backends/etcd"
	"github.com/stampedeguard/stampede/lock/locktest"
)

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// server starts etcd, which must be installed (Debian: etcd-server).
func server(t *testing.T) *clientv3.Client {
	t.Helper()
	client, peer := "http://"+freeAddr(t), "http://"+freeAddr(t)
	cmd := exec.Command("etcd", "--data-dir", t.TempDir(), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--log-level", "error")
	if err := cmd.Start(); err != nil {
		t.Fatalf("etcd does not start (is etcd-server installed?): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{client}, DialTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Get(t.Context(), "up"); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEtcdKeepsContract(t *testing.T) {
	client, n := server(t), 0
	locktest.Run(t, locktest.Features{Fences: true, WakeUps: true}, func(*testing.T) func() lock.Backend {
		n++
		prefix := fmt.Sprint("test", n)
		return func() lock.Backend { return etcd.New(client, prefix) }
	})
}
