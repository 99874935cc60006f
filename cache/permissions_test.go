package cache_test

import (
	"context"
	"errors"
	"slices"
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

// granted are the rules that a store can't do without on a standalone server.
var granted = slices.DeleteFunc(rules(false), func(rule any) bool { return rule == "+mget" || rule == "+exists" })

// rules are those of ACLRules, as arguments of ACL SETUSER.
func rules(cluster bool) (args []any) {
	line, err := cache.ACLRules("app", cluster)
	if err != nil {
		panic(err)
	}
	for _, rule := range strings.Fields(line) {
		args = append(args, rule)
	}
	return args
}

// without are the granted rules but one.
func without(rule string) []any {
	return slices.DeleteFunc(slices.Clone(granted), func(r any) bool { return r == rule })
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
func TestMissingPermissionIsNamedAtTheStart(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for _, rule := range []string{
		"+ping", "+get", "+pttl", "+set", "+getrange", "+setrange", "+del", "+pexpire", "+incr", "+sadd", "+srem", "+scard", "+smembers",
		"+hmget", "+hset", "+hincrby", "+eval", "+evalsha", "+publish", "~app:*", "&app:*",
	} {
		_, err := cache.NewRedis(asUser(t, server, without(rule)...), cache.Options{Namespace: "app"})
		if !errors.Is(err, cache.ErrRefused) || !strings.Contains(err.Error(), "grant it "+rule+" (") {
			t.Errorf("without %s: %v", rule, err)
		}
	}
	left, err := server.Client().Keys(t.Context(), "*").Result()
	if err != nil {
		t.Error(err)
	}
	for _, key := range left {
		if ttl, err := server.Client().TTL(t.Context(), key).Result(); err != nil || ttl < 0 && !strings.HasSuffix(key, ":clock") {
			t.Errorf("%s is left behind: %v, %v", key, ttl, err)
		}
	}
}

// pitfall 32
func TestAllMissingPermissionsAreNamed(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for _, c := range []struct {
		rules []any
		want  string
	}{
		{append(without("~app:*"), "~app:{*", "-hset", "-incr"), "+incr +hset"},
		{append(without("&app:*"), "&app:{*", "&app:alive:*"), "&app:*"}, // invalidations would be lost
		{append(without("~app:*"), "%R~app:*"), "~app:*"},
		{nil, "+ping +get"},
	} {
		_, err := cache.NewRedis(asUser(t, server, c.rules...), cache.Options{Namespace: "app"})
		if err == nil || !strings.Contains(err.Error(), "grant it "+c.want) {
			t.Errorf("%v: %v", c.rules, err)
		}
	}
}

func TestMissingPermissionIsNamedOnACluster(t *testing.T) {
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	for _, rule := range []string{"+cluster|slots", "+spublish", "+hset"} {
		args := []any{"ACL", "SETUSER", rule, "on", ">secret"}
		args = append(args, slices.DeleteFunc(rules(true), func(r any) bool { return r == rule })...)
		for _, m := range cluster.Masters() {
			if err := m.Client().Do(t.Context(), args...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		o := cluster.Options()
		o.Username, o.Password = rule, "secret"
		client := redis.NewClusterClient(o)
		_, err := cache.NewRedis(client, cache.Options{Namespace: "app"})
		if !errors.Is(err, cache.ErrRefused) || !strings.Contains(err.Error(), "grant it "+rule+" (") {
			t.Errorf("without %s: %v", rule, err)
		}
		_ = client.Close()
	}
}

func TestMissingCommandIsNamedAtTheStart(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{Args: []string{"--rename-command", "PUBLISH", "", "--rename-command", "HSET", "x"}})
	_, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "app"})
	if err == nil || !strings.Contains(err.Error(), "the server does not know HSET, PUBLISH, which") {
		t.Error(err)
	}
}

// pitfall 32: the documented lesser mode.
func TestUserWithoutPubSubGetsTheLesserMode(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for rule, advice := range map[string]string{"+pubsub|numsub": "+pubsub", "+subscribe": "+subscribe"} {
		t.Run(rule, func(t *testing.T) {
			s, err := cache.NewRedis(asUser(t, server, without(rule)...), cache.Options{Namespace: "app"})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { return s.Liveness() != nil })
			if err := s.Liveness(); !strings.Contains(err.Error(), "grant the Redis user "+advice) {
				t.Error(err)
			}
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
