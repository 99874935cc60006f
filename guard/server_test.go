package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// These tests show the effects of a real server, cluster or Sentinel on guards at work.

// onClient opens a guard on a store on the client, both closed by the test's end.
func onClient(t *testing.T, client redis.UniversalClient, p guard.Policy) *guard.Guard[string] {
	t.Helper()
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, s) })
	return (&world{T: t}).guard(s, p)
}

// underWay has one guard fetch, and the others wait for it. It returns when all of their
// callers wait.
func underWay(t *testing.T, fleet []*guard.Guard[string], key string, o *origin) <-chan []answer {
	t.Helper()
	answers := make(chan []answer, 1)
	const each = 5
	go func() { answers <- callers(fleet, each, key, o.fetch) }()
	until(t, "all callers wait", func() bool {
		waiting := 0
		for _, g := range fleet {
			waiting += g.Stats().Waiting
		}
		return waiting == each*len(fleet) || o.ended.Load() != nil
	})
	return answers
}

func allGot(t *testing.T, answers []answer) {
	t.Helper()
	for _, a := range answers {
		if a.err != nil {
			t.Errorf("after %v a caller got %v", a.took, a.err)
		}
	}
}

// replicated returns when a replica has the earlier writes.
func replicated(t *testing.T, client *redis.Client) {
	t.Helper()
	conn := client.Conn()
	defer conn.Close()
	if err := conn.Set(t.Context(), "replicated", "", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Wait(t.Context(), 1, 20*time.Second).Result(); err != nil || n < 1 {
		t.Fatalf("%d replicas have it: %v", n, err)
	}
}

// pitfall 30
func TestFailoverCostsAtMostOneMoreFetch(t *testing.T) {
	beside(t)
	sentinel := redistest.RunSentinel(t, redistest.SentinelConfig{})
	fleet := []*guard.Guard[string]{
		onClient(t, sentinel.Client(), policy()), onClient(t, sentinel.Client(), policy()),
	}
	o := &origin{takes: 3 * time.Second}
	answers := underWay(t, fleet, "k", o)
	replicated(t, sentinel.Client()) // or the lease is lost with the master, and the fetch with it
	old, err := sentinel.KillMaster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	allGot(t, <-answers)
	if n := o.n.Load(); n > 2 {
		t.Errorf("%d fetches", n)
	}
	if _, err := sentinel.WaitNewMaster(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	// The new master serves all of it.
	deadline := time.Now().Add(20 * time.Second)
	for {
		r, err := fleet[0].Load(context.Background(), "k2", func(ctx context.Context, _ *guard.Fill[string]) (string, error) { return "v", nil })
		if err == nil && r.Stored {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing is stored after the failover: %+v, %v", r, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if r, err := fleet[1].Peek(context.Background(), "k2"); err != nil || r.Value != "v" {
		t.Errorf("Peek: %+v, %v", r, err)
	}
}

// Behind Sentinel a master that was replaced goes on answering for some ten
// seconds, and the subscription with it: leases are granted again all the same.
func TestLeasesAreGrantedSoonAfterAForcedFailover(t *testing.T) {
	beside(t)
	sentinel := redistest.RunSentinel(t, redistest.SentinelConfig{})
	p := policy(func(p *guard.Policy) { p.FailClosed = true })
	g := onClient(t, sentinel.Client(), p)
	fetch := func(context.Context) (string, error) { return "v", nil }
	get(&world{T: t}, g, "before", fetch)
	if err := sentinel.Failover(t.Context()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for n := 0; ; n++ {
		_, err := g.Get(context.Background(), fmt.Sprint("k", n), fetch)
		if err == nil {
			break
		}
		if time.Since(start) > 5*time.Second {
			t.Fatalf("5 s after the failover no lease is granted: %v", err)
		}
	}
	t.Logf("after %v", time.Since(start))
}

// pitfall 24: the near cache hears of changes made on the new master, though the
// old one goes on answering.
func TestNearCacheFollowsAForcedFailover(t *testing.T) {
	beside(t)
	sentinel := redistest.RunSentinel(t, redistest.SentinelConfig{})
	p := nearPolicy(func(p *guard.Policy) { p.Near.TTL = time.Minute })
	g, other := onClient(t, sentinel.Client(), p), onClient(t, sentinel.Client(), policy())
	w := &world{T: t}
	must(w, other.Set(t.Context(), "k", "old"))
	for near := false; !near; {
		r, err := g.Load(t.Context(), "k", neverTold)
		must(w, err)
		near = r.Source == guard.FromNear
	}
	if err := sentinel.Failover(t.Context()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for other.Set(t.Context(), "k", "new") != nil { // until its client has followed
		time.Sleep(time.Millisecond)
	}
	for get(w, g, "k", never) != "new" {
		if time.Since(start) > 5*time.Second {
			t.Fatal("5 s after the failover the near cache still has the old value")
		}
		time.Sleep(time.Millisecond)
	}
	t.Logf("after %v", time.Since(start))
}

// pitfall 26
func TestWaitersFollowAMovingSlot(t *testing.T) {
	beside(t)
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	fleet := []*guard.Guard[string]{
		onClient(t, cluster.Client(), policy()), onClient(t, cluster.Client(), policy()),
	}
	ctx := t.Context()
	master, err := cluster.MasterFor(ctx, "test:{g:k}")
	if err != nil {
		t.Fatal(err)
	}
	slot, err := cluster.Slot(ctx, "test:{g:k}")
	if err != nil {
		t.Fatal(err)
	}
	from := 0
	for i, m := range cluster.Masters() {
		if m == master {
			from = i
		}
	}
	o := &origin{takes: 2 * time.Second}
	answers := underWay(t, fleet, "k", o)
	if err := cluster.MoveSlot(ctx, slot, from, (from+1)%3); err != nil {
		t.Fatal(err)
	}
	got := <-answers
	allGot(t, got)
	// A slot in motion may look like a dead holder for a moment.
	if n := o.n.Load(); n > 2 {
		t.Errorf("%d fetches", n)
	}
	if v, err := fleet[1].Get(context.Background(), "k", never); err != nil {
		t.Errorf("stored: %q, %v", v, err)
	}
}

func TestScriptsThatWereFlushedAreSentAgain(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	fleet := []*guard.Guard[string]{
		onClient(t, server.Client(), policy(func(p *guard.Policy) { p.Lease = 300 * time.Millisecond })),
		onClient(t, server.Client(), policy()),
	}
	o := &origin{takes: time.Second}
	answers := underWay(t, fleet, "k", o)
	if err := server.Client().ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	allGot(t, <-answers)
	if n := o.n.Load(); n != 1 {
		t.Errorf("%d fetches: the lease was not renewed without its script", n)
	}
}

func TestKilledSubscriptionCostsAtMostOneFetch(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	fleet := []*guard.Guard[string]{onClient(t, server.Client(), policy()), onClient(t, server.Client(), policy())}
	o := &origin{takes: time.Second}
	answers := underWay(t, fleet, "k", o)
	for range 3 {
		if err := server.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	got := <-answers
	allGot(t, got)
	if n := o.n.Load(); n > 2 {
		t.Errorf("%d fetches", n)
	}
}

func TestValuesAreCachedWithoutSubscribe(t *testing.T) {
	renamed := []string{"--rename-command", "SUBSCRIBE", ""}
	for name, client := range map[string]func(t *testing.T) redis.UniversalClient{
		"standalone": func(t *testing.T) redis.UniversalClient {
			return redistest.RunStandalone(t, redistest.StandaloneConfig{Args: renamed}).Client()
		},
		"cluster": func(t *testing.T) redis.UniversalClient {
			return redistest.RunCluster(t, redistest.ClusterConfig{Args: renamed}).Client()
		},
	} {
		t.Run(name, func(t *testing.T) {
			events := &recorder{}
			s, err := cache.NewRedis(client(t), cache.Options{Namespace: "test", Observer: events})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { closed(t, s) })
			g := (&world{T: t}).guard(s, policy(func(p *guard.Policy) { p.Near.MaxEntries = 10 }))
			began := time.Now()
			for i := range 3 {
				want := guard.FromStore
				if i == 0 {
					want = guard.Fetched
				}
				r, err := g.Load(t.Context(), "k", func(context.Context, *guard.Fill[string]) (string, error) { return "v", nil })
				if err != nil || r.Source != want || !r.Stored {
					t.Errorf("Load: %+v, %v", r, err)
				}
				many, err := g.GetMany(t.Context(), []string{"a", "b", "c"}, func(_ context.Context, keys []string) (map[string]string, error) {
					if i > 0 {
						t.Errorf("%v are fetched again", keys)
					}
					return map[string]string{"a": "v", "b": "v", "c": "v"}, nil
				})
				if err != nil || len(many) != 3 {
					t.Errorf("GetMany: %v, %v", many, err)
				}
			}
			if took := time.Since(began); took > 900*time.Millisecond { // a first subscription is waited for for a second
				t.Errorf("the calls took %v", took)
			}
			if n := events.count(cache.LivenessOff); n != 1 || s.Liveness() == nil {
				t.Errorf("it was told %d times that liveness is off: %v", n, s.Liveness())
			}
			if stats := g.Stats(); stats.NearLive || stats.NearEntries > 0 {
				t.Errorf("the near cache is in use: %+v", stats)
			}
		})
	}
}

// A full Redis takes no lease and no value: callers are served all the same, and
// no lease is left behind to wait for.
func TestFullRedisLosesNothingButTheCache(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	admin := server.Client()
	events := &recorder{}
	g := onClient(t, server.Client(), policy(func(p *guard.Policy) { p.Observer = events }))
	fill := func() {
		if err := admin.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
			t.Fatal(err)
		}
	}
	// Full between acquire and fill.
	r, err := g.Load(context.Background(), "k", func(context.Context, *guard.Fill[string]) (string, error) { fill(); return "v", nil })
	if err != nil || r.Value != "v" || r.Stored {
		t.Errorf("%+v, %v", r, err)
	}
	if n := events.count(cache.FillRefused); n != 1 {
		t.Errorf("%d refusals were reported", n)
	}
	// Full before acquire.
	r, err = g.Load(context.Background(), "k2", func(context.Context, *guard.Fill[string]) (string, error) { return "v", nil })
	if err != nil || r.Source != guard.UnguardedFetch {
		t.Errorf("%+v, %v", r, err)
	}
	if err := g.Set(context.Background(), "k", "v"); !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Set: %v", err)
	}
	if keys, err := admin.Keys(t.Context(), "*").Result(); err != nil || strings.Contains(fmt.Sprint(keys), "lease") {
		t.Errorf("left behind: %v, %v", keys, err)
	}
	if err := admin.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if r, err = g.Load(context.Background(), "k", func(context.Context, *guard.Fill[string]) (string, error) { return "v", nil }); err != nil || !r.Stored {
		t.Errorf("with room again: %+v, %v", r, err)
	}
}
