package guard_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func TestThousandColdKeysTakeFourRoundTrips(t *testing.T) {
	w := &world{T: t}
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	client := server.Client()
	store, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 5 * time.Second})
	must(w, err)
	t.Cleanup(func() { closed(t, store) })
	g := w.guard(store, policy())
	getMany(w, g, []string{"x", "y"}, (&manyOrigin{}).fetch) // subscription, scripts
	count := &redistest.Counter{}
	client.AddHook(count)
	keys := keysFrom(0, 1000)
	o := &manyOrigin{}
	equal(w, getMany(w, g, keys, o.fetch), valuesOf(keys))
	o.called(w, 1)
	if n := count.Trips(); n > 4 {
		t.Errorf("%d round trips, want at most 4", n)
	} else {
		t.Logf("cold: %d round trips", n)
	}
	for _, most := range []int64{2, 1} {
		before := count.Trips()
		equal(w, getMany(w, g, keys, neverMany), valuesOf(keys))
		if n := count.Trips() - before; n > most {
			t.Errorf("warm: %d round trips, want at most %d", n, most)
		}
	}
}

// overlap has several guards ask for overlapping keys at once, and for some by
// themselves, and checks that each was fetched once in all of them.
func overlap(t *testing.T, fleet []*guard.Guard[string], rounds int) {
	w := &world{T: t}
	for round := range rounds {
		o := &manyOrigin{takes: 20 * time.Millisecond}
		keys := keysFrom(round*1000, round*1000+60)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 3 * len(fleet) {
			some := slices.Clone(keys[i%7*5 : i%7*5+30])
			if i%2 == 0 {
				slices.Reverse(some)
			}
			g := fleet[i%len(fleet)]
			wg.Go(func() { equal(w, getMany(w, g, some, o.fetch), valuesOf(some)) })
			wg.Go(func() {
				if v := get(w, g, some[3], o.one(some[3])); v != "v of "+some[3] {
					t.Errorf("Get: %q", v)
				}
			})
		}
		wg.Wait()
		o.eachOnce(w, keys[:30])
		if took := time.Since(start); took > 20*time.Second {
			t.Fatalf("round %d took %v", round, took)
		}
		if t.Failed() {
			for i, g := range fleet {
				t.Logf("guard %d: %+v", i, g.Stats())
			}
			return
		}
	}
}

func TestOverlappingBatchesOnARealRedis(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	var fleet []*guard.Guard[string]
	for range 3 {
		fleet = append(fleet, onPatientClient(t, server.Client()))
	}
	overlap(t, fleet, 100)
}

func TestOverlappingBatchesOnACluster(t *testing.T) {
	server := redistest.RunCluster(t, redistest.ClusterConfig{})
	var fleet []*guard.Guard[string]
	for range 3 {
		fleet = append(fleet, onPatientClient(t, server.Client()))
	}
	overlap(t, fleet, 20)
}

// onPatientClient is onClient for a machine that is busy: that is no outage.
func onPatientClient(t *testing.T, client redis.UniversalClient) *guard.Guard[string] {
	t.Helper()
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, s) })
	g := (&world{T: t}).guard(s, policy())
	for i := range 20 { // its subscriptions are live
		get(&world{T: t}, g, fmt.Sprint("warm-up", i), func(context.Context) (string, error) { return "v", nil })
	}
	return g
}

// A value that Redis refuses to take costs the others nothing.
func TestBatchOnAFullRedisLeavesNoLease(t *testing.T) {
	w := &world{T: t}
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	admin := server.Client()
	events := &recorder{}
	g := onClient(t, server.Client(), policy(func(p *guard.Policy) { p.Observer = events }))
	keys := keysFrom(0, 5)
	m := getMany(w, g, keys, func(ctx context.Context, keys []string) (map[string]string, error) {
		return valuesOf(keys), admin.ConfigSet(ctx, "maxmemory", "1").Err()
	})
	equal(w, m, valuesOf(keys))
	if n := events.count(cache.FillRefused); n != 5 {
		t.Errorf("%d refusals were reported", n)
	}
	if left, err := admin.Keys(t.Context(), "*lease*").Result(); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	o := &manyOrigin{}
	equal(w, getMany(w, g, keys, o.fetch), valuesOf(keys)) // refused at the acquire
	o.called(w, 1)
}
