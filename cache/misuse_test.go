package cache_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/cache/cachetest"
	"github.com/stampedeguard/stampede/internal/redistest"
)

func TestNilContextIsNamedByEveryStore(t *testing.T) {
	memory, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	overRedis, err := cache.NewRedis(redistest.RunEmbedded(t).Client(), cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []cache.Store{memory, overRedis} {
		var none context.Context
		_, read := s.Read(none, "k")
		_, acquire := s.Acquire(none, "k", lasting())
		_, stamp := s.Stamp(none)
		tagged := entryOf("v", time.Minute)
		tagged.Tags = []string{"t"}
		for name, err := range map[string]error{
			"Read": read, "Acquire": acquire, "Stamp": stamp,
			"ReadMany":    cachetest.ReadMany(none, s, []string{"k"})[0].Err,
			"AcquireMany": s.AcquireMany(none, []cache.Request{{Key: "k", Ask: lasting()}})[0].Err,
			"Set":         s.Set(none, "k", entryOf("v", time.Minute)),
			"Set, tagged": s.Set(none, "k", tagged),
			"Delete":      s.Delete(none, "k"),
			"Expire":      s.Expire(none, "k"),
			"Reset":       s.Reset(none, "k"),
			"DeleteTag":   s.DeleteTag(none, "t"),
			"ExpireTag":   s.ExpireTag(none, "t"),
		} {
			if err == nil || !strings.Contains(err.Error(), "nil context") {
				t.Errorf("%T: %s: %v", s, name, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNilClientsAreRefused(t *testing.T) {
	var client *redis.Client
	var cluster *redis.ClusterClient
	type wrapper struct{ redis.UniversalClient }
	var wrapped *wrapper
	for want, c := range map[string]redis.UniversalClient{
		"nil client": nil, "nil *redis.Client": client, "nil *redis.ClusterClient": cluster, "nil *cache_test.wrapper": wrapped,
	} {
		if _, err := cache.NewRedis(c, cache.Options{Namespace: "test"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
	}
}
