package lock_test

import (
	"testing"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/lock"
)

func TestHooksOfClientSeeLockCommands(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client := server.Client()
	var sent redistest.Counter
	client.AddHook(&sent)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	l := newLocker(t, lock.Options{}, lock.On(s))
	mustUnlock(t, mustLock(t, l, "n"))
	sent.Reset()
	for range 10 {
		mustUnlock(t, mustLock(t, l, "n"))
	}
	if n := sent.Count("evalsha"); n != 20 {
		t.Errorf("the hook saw %v for 10 locks, want 20 calls of scripts", sent.All())
	}
}
