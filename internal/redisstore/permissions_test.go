package redisstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/storetest"
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

// grants are the rules that a store can't do without on a standalone server.
var grants = slices.DeleteFunc(rules(false), func(rule any) bool { return rule == "+mget" || rule == "+exists" })

// rules are those of ACLRules, as arguments of ACL SETUSER.
func rules(cluster bool) (args []any) {
	line, err := redisstore.ACLRules("test", cluster)
	if err != nil {
		panic(err)
	}
	for _, rule := range strings.Fields(line) {
		args = append(args, rule)
	}
	return args
}

// without are the grants but one.
func without(rule string) []any {
	return slices.DeleteFunc(slices.Clone(grants), func(r any) bool { return r == rule })
}

// pitfall 32
func TestUserWithTheDocumentedPermissionsIsEnough(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s, err := open(asUser(t, server, grants...), redisstore.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	works(t, s)
	if err := s.Liveness(); err != nil {
		t.Error(err)
	}
}

// works goes once through the operations of a store, and closes it.
func works(t *testing.T, s *redisstore.Store) {
	t.Helper()
	ctx := context.Background()
	ask := func(key string) *store.Lease {
		t.Helper()
		a := acquire(ctx, s, store.Request{Key: key, TTL: 200 * time.Millisecond, RenewFor: time.Minute, MaxAttempts: 3, Window: 2 * time.Minute})
		if a.Err != nil || a.Verdict != store.Granted {
			t.Fatalf("%v, %v", a.Verdict, a.Err)
		}
		return a.Lease
	}
	l := ask("k")
	time.Sleep(400 * time.Millisecond) // the lease is renewed, or the fill is refused
	if b := giveBack(ctx, s, store.Return{Lease: l, Entry: entryOf("v", time.Minute)}); !b.OK || b.Err != nil {
		t.Fatalf("fill: %+v", b)
	}
	if b := giveBack(ctx, s, store.Return{Lease: ask("failing"), Failed: true, Failure: []byte("why"), Pause: time.Second}); !b.OK || b.Err != nil {
		t.Fatalf("fail: %+v", b)
	}
	if err := change(ctx, s, store.Change{Kind: store.Reset, Key: "failing"}); err != nil {
		t.Errorf("Reset of a pause: %v", err)
	}
	for name, call := range calls(t, s) {
		switch name {
		case "Fill", "Fail", "Release": // they are about a lease that was never granted
			continue
		}
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(remove(ctx, s, "k"), s.Close()); err != nil {
		t.Errorf("Delete and Close: %v", err)
	}
}

// pitfall 32
func TestMissingPermissionIsNamedAtTheStart(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for _, rule := range []string{
		"+ping", "+get", "+pttl", "+set", "+getrange", "+setrange", "+del", "+pexpire", "+incr", "+sadd", "+srem", "+scard", "+smembers",
		"+hmget", "+hset", "+hincrby", "+eval", "+evalsha", "+publish", "~test:*", "&test:*",
	} {
		_, err := open(asUser(t, server, without(rule)...), redisstore.Options{Namespace: "test"})
		if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "grant it "+rule+" (") {
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
		{append(without("~test:*"), "~test:{*", "-hset", "-incr"), "+incr +hset"},
		{append(without("&test:*"), "&test:{*", "&test:alive:*"), "&test:*"}, // invalidations would be lost
		{append(without("~test:*"), "%R~test:*"), "~test:*"},
		{nil, "+ping +get"},
	} {
		_, err := open(asUser(t, server, c.rules...), redisstore.Options{Namespace: "test"})
		if err == nil || !strings.Contains(err.Error(), "grant it "+c.want) {
			t.Errorf("%v: %v", c.rules, err)
		}
	}
}

func TestMissingPermissionIsNamedOnACluster(t *testing.T) {
	t.Parallel()
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
		_, err := open(client, redisstore.Options{Namespace: "test"})
		if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "grant it "+rule+" (") {
			t.Errorf("without %s: %v", rule, err)
		}
		_ = client.Close()
	}
}

func TestMissingCommandIsNamedAtTheStart(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{Args: []string{"--rename-command", "PUBLISH", "", "--rename-command", "HSET", "x"}})
	_, err := open(server.Client(), redisstore.Options{Namespace: "test"})
	if err == nil || !strings.Contains(err.Error(), "the server does not know HSET, PUBLISH, which") {
		t.Error(err)
	}
}

// pitfall 32
func TestUserWithoutPubSubHasNoLiveness(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for rule, advice := range map[string]string{"+pubsub|numsub": "+pubsub", "+subscribe": "+subscribe"} {
		t.Run(rule, func(t *testing.T) {
			s, err := open(asUser(t, server, without(rule)...), redisstore.Options{Namespace: "test"})
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

func TestClientsThatReadElsewhereAreRefused(t *testing.T) {
	replicas := func() *redis.ClusterClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadOnly: true})
	}
	ring := func() *redis.Ring {
		return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	}
	// Wrapped as a package does that measures calls.
	for name, client := range map[string]redis.UniversalClient{
		"replicas":         replicas(),
		"wrapped replicas": struct{ *redis.ClusterClient }{replicas()},
		"ring":             ring(),
		"wrapped ring":     struct{ *redis.Ring }{ring()},
		"wrapped client with a cache": struct{ *redis.Client }{redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:1", ClientSideCacheConfig: &redis.ClientSideCacheConfig{},
		})},
	} {
		if _, err := open(client, redisstore.Options{Namespace: "test"}); err == nil {
			t.Errorf("%s: accepted", name)
		}
		_ = client.Close()
	}
}

func TestNilClientsAreRefused(t *testing.T) {
	var client *redis.Client
	var cluster *redis.ClusterClient
	type wrapper struct{ redis.UniversalClient }
	var wrapped *wrapper
	for _, c := range []redis.UniversalClient{nil, client, cluster, wrapped} {
		if _, err := open(c, redisstore.Options{Namespace: "test"}); !contains(err, "nil") {
			t.Errorf("%T: %v", c, err)
		}
	}
}

func TestAllMistakesInOptionsAreNamed(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: nowhere})
	defer client.Close()
	_, err := open(client, redisstore.Options{Namespace: "a{b", RedisTimeout: -1, BreakerFailures: -1})
	if !contains(err, "Namespace", "RedisTimeout", "BreakerFailures") {
		t.Error(err)
	}
}

func TestStoreStartsWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(server.Options())
	defer client.Close()
	s, err := open(client, redisstore.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(t.Context(), s, "k"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("error %v, want ErrUnavailable", err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, err := read(t.Context(), s, "k"); return err == nil })
	works(t, s)
}

// Entries of a full Redis can be read, and none can be stored until it has room.
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
	s, err := open(server.Client(), redisstore.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := set(t.Context(), s, "k", entryOf("v", time.Minute)); !errors.Is(err, store.ErrRefused) {
		t.Errorf("while it is full: %v", err)
	}
	limit("0")
	works(t, s)
}

// A client that Redis turns away is not advised to grant commands.
func TestRejectedClientIsAdvised(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for name, change := range map[string]func(*redis.Options){
		"password": func(o *redis.Options) { o.Username, o.Password = "nobody", "wrong" },
		"database": func(o *redis.Options) { o.DB = 99 },
	} {
		o := server.Options()
		change(o)
		client := redis.NewClient(o)
		_, err := open(client, redisstore.Options{Namespace: "test"})
		if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "check its Username, Password and DB") {
			t.Errorf("%s: %v", name, err)
		}
		_ = client.Close()
	}
}

func TestUserWithoutMGETReadsManyKeys(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client, h := asUser(t, server, grants...), &trips{}
	client.AddHook(h.hook())
	s := opened(t, client, redisstore.Options{})
	mustSet(t, s, "a", "v")
	mustSet(t, s, "b", "v")
	if err := server.Client().LPush(t.Context(), "test:{list}", "x").Err(); err != nil {
		t.Fatal(err)
	}
	keys := append([]string{"a", "none", "b", "list"}, make([]string, 4100)...)
	for _, most := range []int{10, 3} { // at first MGETs are tried
		n := h.of(func() {
			got := storetest.ReadMany(t.Context(), s, "", keys)
			if !got[0].Reading.Fresh() || got[1].Reading.Found || !got[2].Reading.Fresh() || got[3].Reading == nil || got[3].Reading.Damage == nil {
				t.Errorf("%+v", got[:4])
			}
		})
		if n > most {
			t.Errorf("%d round trips, want %d at most", n, most)
		}
	}
}
