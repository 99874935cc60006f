package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// confined gives a user of the servers the rights that ACLRules returns for the namespace
// "app", and resets the log of refusals.
func confined(t *testing.T, cluster bool, servers ...*redistest.Server) {
	t.Helper()
	rules, err := cache.ACLRules("app", cluster)
	if err != nil {
		t.Fatal(err)
	}
	args := []any{"ACL", "SETUSER", "app", "on", ">secret"}
	for _, rule := range strings.Fields(rules) {
		args = append(args, rule)
	}
	for _, server := range servers {
		admin := server.Client()
		if err := errors.Join(admin.Do(t.Context(), args...).Err(), admin.Do(t.Context(), "ACL", "LOG", "RESET").Err()); err != nil {
			t.Fatal(err)
		}
	}
}

// refusals returns the commands that the servers have refused since the last reset.
func refusals(t *testing.T, servers ...*redistest.Server) (all []string) {
	t.Helper()
	for _, server := range servers {
		log, err := server.Client().ACLLog(t.Context(), 100).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range log {
			all = append(all, fmt.Sprint(entry.Reason, " ", entry.Object, " in ", entry.Context))
		}
	}
	return all
}

func TestACLRulesSufficeForAGuard(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		t.Run(fmt.Sprint("cluster: ", cluster), func(t *testing.T) {
			beside(t)
			var servers []*redistest.Server
			var client func() redis.UniversalClient
			if cluster {
				c := redistest.RunCluster(t, redistest.ClusterConfig{})
				servers = c.Masters()
				o := c.Options()
				o.Username, o.Password = "app", "secret"
				client = func() redis.UniversalClient { return redis.NewClusterClient(o) }
			} else {
				servers = []*redistest.Server{redistest.RunStandalone(t, redistest.StandaloneConfig{})}
				o := servers[0].Options()
				o.Username, o.Password = "app", "secret"
				client = func() redis.UniversalClient { return redis.NewClient(o) }
			}
			confined(t, cluster, servers...)
			var stores [2]*cache.Redis
			var fleet [2]*guard.Guard[string]
			for i := range fleet {
				c := client()
				t.Cleanup(func() { _ = c.Close() })
				s, err := cache.NewRedis(c, cache.Options{Namespace: "app"})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { closed(t, s) })
				stores[i] = s
				fleet[i] = (&world{T: t}).guard(s, policy(func(p *guard.Policy) {
					p.Lease, p.Tags, p.Stale = 200*time.Millisecond, []string{"all"}, time.Minute
					p.Near = guard.Near{MaxEntries: 100}
				}))
			}
			workThrough(t, fleet[0], fleet[1])
			for _, s := range stores {
				if err := s.Liveness(); err != nil {
					t.Error(err)
				}
			}
			if all := refusals(t, servers...); len(all) > 0 {
				t.Errorf("refused: %s", strings.Join(all, "; "))
			}
		})
	}
}

// workThrough makes each kind of call once: in one process, and in another one as far as
// messages reach it.
func workThrough(t *testing.T, g, other *guard.Guard[string]) {
	t.Helper()
	ctx := t.Context()
	until(t, "near caches are in use", func() bool { return g.Stats().NearLive && other.Stats().NearLive })

	o := &origin{takes: 500 * time.Millisecond} // its lease is renewed, and the other waits
	allGot(t, <-underWay(t, []*guard.Guard[string]{g, other}, "k", o))
	if n := o.n.Load(); n != 1 {
		t.Errorf("%d fetches", n)
	}
	keys := []string{"a", "b", "c", "d", "e", "f"}
	for range 2 {
		many, err := g.GetMany(ctx, keys, func(_ context.Context, keys []string) (map[string]string, error) {
			values := map[string]string{}
			for _, key := range keys {
				values[key] = "v"
			}
			return values, nil
		})
		if err != nil || len(many) != len(keys) {
			t.Errorf("GetMany: %v, %v", many, err)
		}
	}
	until(t, "the other reads the stored value", func() bool { r, err := other.Peek(ctx, "a"); return err == nil && r.Value == "v" })
	for name, change := range map[string]func() error{
		"Delete":    func() error { return g.Delete(ctx, "k") },
		"DeleteTag": func() error { return g.DeleteTag(ctx, "all") },
	} {
		if err := other.Set(ctx, "k", "set"); err != nil {
			t.Errorf("Set: %v", err)
		}
		until(t, "near", func() bool {
			r, err := other.Load(ctx, "k", notNeeded)
			return err == nil && r.Source == guard.FromNear
		})
		if err := change(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		until(t, name+" is heard of", func() bool { _, err := other.Peek(ctx, "k"); return errors.Is(err, guard.ErrMiss) })
	}
	failing := errors.New("no")
	for _, err := range []error{guard.RetryAfter(failing, time.Minute), failing} {
		if _, got := g.Get(ctx, fmt.Sprint("failing: ", err), func(context.Context) (string, error) { return "", err }); !errors.Is(got, failing) {
			t.Errorf("%v", got)
		}
	}
	if err := errors.Join(g.Set(ctx, "k", "v"), g.Expire(ctx, "k"), g.ExpireTag(ctx, "all"), g.Reset(ctx, "k")); err != nil {
		t.Error(err)
	}
	if v, err := g.Get(ctx, "k", func(context.Context) (string, error) { return "refreshed", nil }, guard.MaxAge(0)); err != nil || v != "refreshed" {
		t.Errorf("Refresh: %q, %v", v, err)
	}
}

func notNeeded(context.Context, *guard.Fill[string]) (string, error) {
	return "", errors.New("fetched needlessly")
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never happened: %s", what)
		}
	}
}

func TestACLRulesNameTheNamespace(t *testing.T) {
	rules, err := cache.ACLRules("shop:v2", false)
	if err != nil || !slices.Contains(strings.Fields(rules), "~shop:v2:*") || !slices.Contains(strings.Fields(rules), "&shop:v2:*") {
		t.Errorf("%s, %v", rules, err)
	}
	if _, err := cache.ACLRules("a*", false); err == nil {
		t.Error("a namespace that opens a pattern is accepted")
	}
}
