package cache_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// asUser is a client of the server as a user of the given rules.
func asUser(t *testing.T, server *redistest.Server, rules ...any) *redis.Client {
	t.Helper()
	admin := server.Client()
	args := append([]any{"ACL", "SETUSER", t.Name(), "on", ">secret", "resetkeys", "resetchannels", "nocommands"}, rules...)
	if err := admin.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	o := server.Options()
	o.Username, o.Password = t.Name(), "secret"
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// granted is what NewRedis's doc says the user needs on a standalone server.
var granted = []any{
	"~app:*", "&app:*", "+hello", "+get", "+pttl", "+eval", "+evalsha", "+set", "+getrange", "+setrange",
	"+del", "+pexpire", "+incr", "+sadd", "+srem", "+scard", "+smembers", "+hmget", "+hset", "+hincrby", "+publish", "+subscribe", "+unsubscribe",
	"+pubsub", "+ping",
}

// pitfall 32
func TestUserWithTheDocumentedPermissionsIsEnough(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s, err := cache.NewRedis(asUser(t, server, granted...), cache.Options{Namespace: "app"})
	if err != nil {
		t.Fatal(err)
	}
	works(t, s)
	if err := s.Liveness(); err != nil {
		t.Error(err)
	}
}

// works goes once through what a store does, and closes it.
func works(t *testing.T, s *cache.Redis) {
	t.Helper()
	ctx := context.Background()
	ask := cache.Ask{TTL: 200 * time.Millisecond, RenewFor: time.Minute, MaxAttempts: 3, Window: 2 * time.Minute}
	a, err := s.Acquire(ctx, "k", ask)
	if err != nil || a.Verdict != cache.Granted {
		t.Fatalf("%+v, %v", a, err)
	}
	time.Sleep(400 * time.Millisecond) // the lease is renewed, or the fill is refused
	e := &cache.Entry{Kind: cache.Value, TTL: time.Minute, FreshFor: time.Minute, Payload: []byte("v")}
	if ok, err := s.Fill(ctx, a.Lease, e); !ok || err != nil {
		t.Fatalf("Fill: %v, %v", ok, err)
	}
	a, err = s.Acquire(ctx, "failing", ask)
	if err != nil || a.Verdict != cache.Granted {
		t.Fatalf("%+v, %v", a, err)
	}
	if ok, err := s.Fail(ctx, a.Lease, []byte("why"), time.Second); !ok || err != nil {
		t.Fatalf("Fail: %v, %v", ok, err)
	}
	tagged := &cache.Entry{Kind: cache.Value, TTL: time.Minute, FreshFor: time.Minute, Tags: []string{"t"}}
	for name, err := range map[string]error{
		"Reset of a pause": s.Reset(ctx, "failing"),
		"Expire":           s.Expire(ctx, "k"), "Set": s.Set(ctx, "k", e), "Reset": s.Reset(ctx, "k"),
		"DeleteTag": s.DeleteTag(ctx, "t"), "Set with tags": s.Set(ctx, "k", tagged), "ExpireTag": s.ExpireTag(ctx, "t"),
		"Delete": s.Delete(ctx, "k"), "Close": s.Close(),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// pitfall 32
func TestUserWithoutScriptsIsToldAtTheStart(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for _, missing := range []any{"+get", "+del", "+incr", "+smembers", "+hmget", "+hset", "+hincrby", "+publish", "+setrange", "~app:*"} {
		var rules []any
		for _, g := range granted {
			if g != missing {
				rules = append(rules, g)
			}
		}
		_, err := cache.NewRedis(asUser(t, server, rules...), cache.Options{Namespace: "app"})
		if err == nil || !strings.Contains(err.Error(), "can't do what the store needs") {
			t.Errorf("without %v: %v", missing, err)
		}
	}
	var noScripts []any
	for _, g := range granted {
		if g != "+eval" && g != "+evalsha" {
			noScripts = append(noScripts, g)
		}
	}
	if _, err := cache.NewRedis(asUser(t, server, noScripts...), cache.Options{Namespace: "app"}); err == nil || !strings.Contains(err.Error(), "can't do what the store needs") {
		t.Errorf("without scripts: %v", err)
	}
}

// pitfall 32: the documented lesser mode.
func TestUserWithoutPubSubGetsTheLesserMode(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for name, forbidden := range map[string]string{"PUBSUB": "+pubsub", "SUBSCRIBE": "+subscribe"} {
		t.Run(name, func(t *testing.T) {
			var rules []any
			for _, g := range granted {
				if g != forbidden {
					rules = append(rules, g)
				}
			}
			client := asUser(t, server, rules...)
			s, err := cache.NewRedis(client, cache.Options{Namespace: "app"})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { return s.Liveness() != nil })
			works(t, s)
		})
	}
}

func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never happened")
		}
	}
}

func TestClientsThatReadFromElsewhereAreRefused(t *testing.T) {
	replicas := func() *redis.ClusterClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadOnly: true})
	}
	ring := func() *redis.Ring {
		return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	}
	// Wrapped as by who measures calls.
	for name, client := range map[string]redis.UniversalClient{
		"replicas":         replicas(),
		"wrapped replicas": struct{ *redis.ClusterClient }{replicas()},
		"ring":             ring(),
		"wrapped ring":     struct{ *redis.Ring }{ring()},
		"wrapped client with a cache": struct{ *redis.Client }{redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:1", ClientSideCacheConfig: &redis.ClientSideCacheConfig{},
		})},
	} {
		if _, err := cache.NewRedis(client, cache.Options{Namespace: "app"}); err == nil {
			t.Errorf("%s: accepted", name)
		}
		_ = client.Close()
	}
	for _, client := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := cache.NewRedis(client, cache.Options{Namespace: "app"}); err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%T: %v", client, err)
		}
	}
}

func TestAllThatIsWrongWithTheOptionsIsSaid(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	_, err := cache.NewRedis(client, cache.Options{Namespace: "a{b", RedisTimeout: -1, BreakerFailures: -1, MaxInFlight: -1})
	for _, field := range []string{"Namespace", "RedisTimeout", "BreakerFailures", "MaxInFlight"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not speak of %s: %v", field, err)
		}
	}
}

func TestStoreStartsWithoutRedisAndGoesToWorkWhenItComes(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(server.Options())
	defer client.Close()
	s, err := cache.NewRedis(client, cache.Options{Namespace: "app"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(context.Background(), "k"); err == nil {
		t.Error("Read from nobody succeeded")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, err := s.Read(context.Background(), "k"); return err == nil })
	works(t, s)
}

// A full Redis is one that a deployment may meet: what is stored can be read, and
// what isn't can't be stored, until it has room.
func TestStoreStartsOnAFullRedis(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	admin := server.Client()
	limit := func(bytes string) {
		t.Helper()
		if err := admin.ConfigSet(t.Context(), "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	limit("1")
	s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "app"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Set(t.Context(), "k", entryOf("v", time.Minute)); !errors.Is(err, cache.ErrRefused) {
		t.Errorf("while it is full: %v", err)
	}
	limit("0")
	works(t, s)
}

// Whom Redis turns away is told that, and not to grant commands.
func TestClientThatIsTurnedAwayIsToldSo(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for name, change := range map[string]func(*redis.Options){
		"password": func(o *redis.Options) { o.Username, o.Password = "nobody", "wrong" },
		"database": func(o *redis.Options) { o.DB = 99 },
	} {
		o := server.Options()
		change(o)
		client := redis.NewClient(o)
		_, err := cache.NewRedis(client, cache.Options{Namespace: "app"})
		if !errors.Is(err, cache.ErrRefused) || !strings.Contains(err.Error(), "check its Username, Password and DB") {
			t.Errorf("%s: %v", name, err)
		}
		_ = client.Close()
	}
}
