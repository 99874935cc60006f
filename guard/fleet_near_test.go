package guard_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/fleet"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// load has all processes call the guard at a steady rate.
func (f *fleetTest) load(l fleet.Load) []*fleet.Call {
	var calls []*fleet.Call
	for _, p := range f.Processes() {
		calls = append(calls, p.StartLoad(l))
	}
	return calls
}

// loaded waits for the results of the loads.
func (f *fleetTest) loaded(l fleet.Load, calls []*fleet.Call) []*fleet.Loaded {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, l.For+hangs)
	defer cancel()
	var all []*fleet.Loaded
	for _, c := range calls {
		got, err := c.Loaded(ctx)
		f.must(err)
		all = append(all, got)
	}
	return all
}

// A hot key is refreshed before it expires, by one process, while all callers are
// served the present value.
func TestFleetHotKeyNeverMakesACallerWait(t *testing.T) {
	const ttl = time.Second
	f := runFleet(t, 4, guard.Policy{TTL: ttl, Near: guard.Near{MaxEntries: 100}, Reserve: strict.Reserve})
	key := f.newKey()
	warmUp := 3 * time.Second
	l := fleet.Load{
		Key: key, PerSecond: 200, For: warmUp + time.Duration(rounds(5, 60))*time.Second, WarmUp: warmUp,
		Fetch: fleet.Fetch{Duration: 200 * time.Millisecond},
	}
	began := time.Now()
	results := f.loaded(l, f.load(l))

	fetches := 0
	for _, e := range f.fetches(key) {
		if e.At.After(began.Add(warmUp)) {
			fetches++
		}
	}
	perTTL := float64(fetches) * float64(ttl) / float64(l.For-warmUp)
	var latency series
	waited := 0 // calls so slow that they must have waited for a fetch
	for _, r := range results {
		if len(r.Errors) > 0 {
			t.Errorf("errors: %v", r.Errors)
		}
		latency = append(latency, r.Latency...)
		for _, d := range r.Latency {
			if d > l.Fetch.Duration/4 {
				waited++
			}
		}
	}
	slices.Sort(latency)
	p999 := latency[len(latency)*999/1000]
	t.Logf("%d calls: p50 %v, p99 %v, p99.9 %v, worst %v; %d waited for a fetch; %.2f fetches per TTL",
		len(latency), latency[len(latency)/2], latency[len(latency)*99/100], p999, latency[len(latency)-1], waited, perTTL)
	if bounds && (p999 > 10*time.Millisecond || waited > 0) {
		t.Errorf("p99.9 is %v and %d callers waited for a fetch, want below 10ms and none", p999, waited)
	}
	if least, most := 0.9, 1.3; bounds && (perTTL < least || perTTL > most) || perTTL > 3 || fetches == 0 {
		t.Errorf("%.2f fetches per TTL, want %v to %v", perTTL, least, most)
	}
}

// After a Set in one process, every process soon serves the new value from its near cache.
func TestFleetNearCachesHearOfASet(t *testing.T) {
	f := runFleet(t, 4, guard.Policy{TTL: time.Minute, Near: guard.Near{MaxEntries: 100, TTL: time.Minute}, Reserve: strict.Reserve})
	key := f.newKey()
	n := rounds(40, 400)
	const every = 50 * time.Millisecond
	_, err := f.Processes()[0].Set(f.ctx, key, "value-0")
	f.must(err)
	l := fleet.Load{Key: key, PerSecond: 500, For: time.Duration(n+10) * every, Fetch: fleet.Fetch{Fail: "boom"}}
	calls := f.load(l)
	sets := make([]fleet.Span, 1, n+1)
	for i := 1; i <= n; i++ {
		time.Sleep(every) // the test needs a steady rate
		span, err := f.Processes()[i%4].Set(f.ctx, key, fmt.Sprint("value-", i))
		f.must(err)
		sets = append(sets, span)
	}
	var lag series
	near, all := 0, 0
	for _, r := range f.loaded(l, calls) {
		near += r.Sources["near"]
		all += r.Calls
		if len(r.Errors) > 0 {
			t.Errorf("errors: %v", r.Errors)
		}
		for i := 1; i <= n; i++ {
			// The last call that was still given an older value.
			late := time.Duration(0)
			if seen, ok := r.Seen[fmt.Sprint("value-", i-1)]; ok {
				late = max(0, seen.LastCall.Sub(sets[i].Returned))
			}
			lag = append(lag, late)
		}
	}
	if near < all/2 {
		t.Errorf("%d of %d calls were served from the near cache: this shows nothing", near, all)
	}
	slices.Sort(lag)
	p99 := lag[len(lag)*99/100]
	t.Logf("%d changes seen by 4 processes, %d of %d calls near: p50 %v, p99 %v, worst %v", n, near, all, lag[len(lag)/2], p99, lag[len(lag)-1])
	if most := lenient(20 * time.Millisecond); p99 > most {
		t.Errorf("p99 is %v, want at most %v", p99, most)
	}
}

// A process behind a link that swallows everything can't hear of changes, and knows it.
func TestFleetBlackHoledProcessStopsServingNearValues(t *testing.T) {
	policy := guard.Policy{TTL: time.Minute, Near: guard.Near{MaxEntries: 100, TTL: time.Minute}, Reserve: guard.Reserve{MaxBytes: guard.Off}}
	f := runFleet(t, 1, policy)
	proxy := redistest.RunProxy(t, f.server.Addr())
	cfg := fleetConfig(policy)
	cfg.Redis.Addrs = []string{proxy.Addr()}
	cfg.Store.RedisTimeout = 0 // the default: this test is about a silent link
	behind := &fleetTest{T: t, Fleet: fleet.Run(t, 1, cfg), server: f.server}
	behind.begin()
	var lag series
	for range rounds(2, 10) {
		key := behind.newKey()
		_, err := f.Processes()[0].Set(f.ctx, key, "old")
		f.must(err)
		l := fleet.Load{Key: key, PerSecond: 200, For: 4 * time.Second, Fetch: fleet.Fetch{Value: "fetched"}}
		calls := behind.load(l)
		time.Sleep(500 * time.Millisecond) // let it be in use
		f.must(proxy.Blackhole())
		cut := time.Now()
		_, err = f.Processes()[0].Set(f.ctx, key, "new")
		f.must(err)
		got := behind.loaded(l, calls)[0]
		if got.Sources["near"] < 50 {
			t.Errorf("the near cache served %d calls: this shows nothing: %v", got.Sources["near"], got.Sources)
		}
		if got.Seen["fetched"].N == 0 {
			t.Errorf("no caller was served by the origin: %v, %v", got.Sources, got.Errors)
		}
		lag = append(lag, got.Seen["old"].LastCall.Sub(cut))
		f.must(proxy.Restore())
		behind.awaitValue(key, "new")
	}
	lag.within(t, "last near value after the link went dead", 0, 2*time.Second)
}

// awaitValue waits until the process serves the value as stored.
func (f *fleetTest) awaitValue(key, value string) {
	f.Helper()
	deadline := time.Now().Add(hangs)
	for {
		p, err := f.Processes()[0].Peek(f.ctx, key)
		if err == nil && p.Value == value {
			return
		}
		if time.Now().After(deadline) {
			f.Fatalf("%s is %q, %v, want %q", key, p.Value, err, value)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
