package guard_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/fleet"
)

// strict is a policy without the reserve: on a machine that is starved of CPU a process may
// take Redis for silent, and the reserve may then serve a value that was deleted elsewhere.
var strict = guard.Policy{Reserve: guard.Reserve{MaxBytes: guard.Off}}

// A race is one round of a change made while callers in all processes come and
// go, and a fetch is under way.
type race struct {
	key      string
	change   fleet.Span
	outcomes []fleet.Outcome
	midFetch bool // the change was made during a fetch
}

// changeUnderLoad runs rounds, several at once, each on a key of its own, until
// n changes have met a fetch that was under way. On a machine so busy that most come
// too late, fetches take longer.
func (f *fleetTest) changeUnderLoad(n int, change func(p *fleet.Process, key string) (fleet.Span, error), check func(race)) {
	const atOnce = 4
	keys := make(chan string)
	midFetch, recent, takes := 0, 0, 10*time.Millisecond
	var mu sync.Mutex // guards these, and check
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for key := range keys {
				mu.Lock()
				takes := takes
				mu.Unlock()
				r, err := f.changeRound(key, takes, change)
				mu.Lock()
				if err != nil {
					f.Error(err)
				} else {
					check(r)
				}
				if r.midFetch {
					midFetch++
					recent++
				}
				mu.Unlock()
			}
		})
	}
	made := 0
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return midFetch >= n
	}
	for ; !enough() && !f.Failed() && made < 20*n; made++ {
		if made%20 == 19 {
			mu.Lock()
			if recent < 5 {
				takes = min(2*takes, 160*time.Millisecond)
			}
			recent = 0
			mu.Unlock()
		}
		keys <- fmt.Sprint("key-", made)
	}
	close(keys)
	workers.Wait()
	f.Logf("of %d changes %d were made while a fetch was under way, of %v in the end", made, midFetch, takes)
	if midFetch < n {
		f.Errorf("want %d", n)
	}
}

// changeRound lets 30 callers come in each process while four fetches could be made
// one after another, and makes the change soon after the first has begun, in any process.
func (f *fleetTest) changeRound(key string, takes time.Duration, change func(p *fleet.Process, key string) (fleet.Span, error)) (race, error) {
	calls := f.everybody(fleet.Get{
		Keys: []string{key}, Callers: 30, Spread: 4 * takes,
		Fetch: fleet.Fetch{Duration: takes},
	})
	r := race{key: key}
	if _, err := f.Log.Await(f.ctx, fleet.Of(key, fleet.FetchBegan)); err != nil {
		return r, err
	}
	time.Sleep(rand.N(takes * 6 / 5))
	all := f.Processes()
	var err error
	if r.change, err = change(all[rand.IntN(len(all))], key); err != nil {
		return r, err
	}
	for _, c := range calls {
		out, err := c.Wait(f.ctx)
		if err != nil {
			return r, err
		}
		r.outcomes = append(r.outcomes, out...)
	}
	open := map[string]time.Time{}
	for _, e := range f.Log.All(fleet.Of(key, fleet.FetchBegan, fleet.FetchEnded)) {
		if e.Kind == fleet.FetchBegan {
			open[e.Token] = e.At
		} else if began := open[e.Token]; began.Before(r.change.Called) && e.At.After(r.change.Called) {
			r.midFetch = true
		}
	}
	return r, nil
}

// Pitfalls 16 and 17: a fetch in flight doesn't undo a Delete, and a caller after the
// Delete doesn't join a fetch from before it.
func TestFleetGetAfterDeleteSeesNoOldValue(t *testing.T) {
	f := runFleet(t, 3, strict)
	after, shared := 0, 0
	f.changeUnderLoad(rounds(100, 1000),
		func(p *fleet.Process, key string) (fleet.Span, error) { return p.Delete(f.ctx, key) },
		func(r race) {
			for _, o := range r.outcomes {
				if o.Err != nil {
					t.Errorf("%s: %d callers got %v", r.key, o.N, o.Err)
					continue
				}
				if !o.LastCall.After(r.change.Returned) {
					continue
				}
				after++
				if o.Source != guard.Fetched.String() {
					shared++
				}
				if o.Fetched().Before(r.change.Called) {
					t.Errorf("%s: Delete returned at %v; a Get that started %v later got (%s) a value that was fetched %v before Delete was called; events %+v",
						r.key, r.change.Returned, o.LastCall.Sub(r.change.Returned), o.Source,
						r.change.Called.Sub(o.Fetched()), f.Log.All(fleet.Of(r.key)))
				}
			}
		})
	t.Logf("%d groups of callers came after a Delete, %d of them shared a value", after, shared)
	if after == 0 || shared == 0 {
		t.Error("no caller came after a Delete")
	}
	f.noFetchWithoutLease()
}

// Pitfalls 16 and 17 for Set: all later callers see its value.
func TestFleetGetAfterSetSeesTheSetValue(t *testing.T) {
	f := runFleet(t, 3, strict)
	after := 0
	f.changeUnderLoad(rounds(100, 1000),
		func(p *fleet.Process, key string) (fleet.Span, error) { return p.Set(f.ctx, key, "set") },
		func(r race) {
			for _, o := range r.outcomes {
				if o.Err != nil {
					t.Errorf("%s: %d callers got %v", r.key, o.N, o.Err)
				} else if o.Value == "set" {
					after++
				} else if o.LastCall.After(r.change.Returned) {
					t.Errorf("%s: a Get that started %v after Set returned got (%s) %q; events %+v",
						r.key, o.LastCall.Sub(r.change.Returned), o.Source, o.Value, f.Log.All(fleet.Of(r.key)))
				}
			}
			got, err := f.Processes()[0].Peek(f.ctx, r.key)
			if err != nil || got.Value != "set" {
				t.Errorf("%s: stored in the end: %q, %v", r.key, got.Value, err)
			}
		})
	if after == 0 {
		t.Error("no caller got the value of the Set")
	}
	f.noFetchWithoutLease()
}

// noFetchWithoutLease fails the test if Redis was too slow for the guards, so
// that they fetched past it.
func (f *fleetTest) noFetchWithoutLease() {
	f.Helper()
	if all := f.Log.All(func(e fleet.Event) bool { return e.Kind == cache.Unguarded }); len(all) > 0 {
		f.Errorf("%d fetches without a lease, the first: %+v", len(all), all[0])
	}
}
