package guard_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/fleet"
)

// commandBound is how many Redis commands a process sends for one cold key with a fetch
// of 200 ms, however many callers it has. It includes the subscription's own commands, and
// an UNSUBSCRIBE that the round before put off. It does not include the PINGs, which come
// by the clock.
const commandBound = 15

// coldRound has all processes call one cold key at once and checks that one
// fetch served all of them. It returns how long after the end of the fetch the
// last caller had returned, and the commands of the process that sent most.
func (f *fleetTest) coldRound(callersEach int) (tail time.Duration, most fleet.Stats) {
	f.Helper()
	key := f.newKey()
	before := f.stats()
	out := f.wait(f.everybody(fleet.Get{
		Keys: []string{key}, Callers: callersEach, At: time.Now().Add(100 * time.Millisecond),
		Fetch: fleet.Fetch{Duration: 200 * time.Millisecond},
	})...)
	for p, after := range f.stats() {
		sent := after.Since(before[p])
		delete(sent.Commands, "ping")
		if sent.Total() > most.Total() {
			most = sent
		}
	}
	if n := len(f.fetches(key)); n != 1 {
		f.Errorf("%d fetches, want 1: %v", n, f.Log.All(fleet.Of(key)))
	}
	if n := callersOf(out); n != callersEach*len(before) {
		f.Errorf("%d callers returned, want %d", n, callersEach*len(before))
	}
	for _, o := range out {
		if o.Err != nil || o.Value != out[0].Value {
			f.Errorf("%d callers got %q, %v; others %q", o.N, o.Value, o.Err, out[0].Value)
		}
	}
	end := f.await(fleet.Of(key, fleet.FetchEnded))
	return lastReturn(out).Sub(end.At), most
}

// Pitfall 9 is here too: one fill, not one for each waiter.
func TestFleetFetchesAColdKeyOnce(t *testing.T) {
	f := runFleet(t, 8, guard.Policy{})
	var tails series
	var commands tally
	fills := 0
	for range rounds(10, 100) {
		tail, sent := f.coldRound(1000)
		tails = append(tails, tail)
		commands = append(commands, sent)
		fills += len(f.Log.All(func(e fleet.Event) bool { return e.Kind == cache.FillStored }))
	}
	if fills != f.round {
		t.Errorf("%d fills in %d rounds", fills, f.round)
	}
	commands.within(t, "1000 callers in each of 8 processes")
	tails.within(t, "from the end of the fetch to the return of the last of 8000 callers", 25*time.Millisecond, 0)
}

// Pitfall 13.
func TestFleetSendsNoMoreCommandsForMoreCallers(t *testing.T) {
	f := runFleet(t, 2, guard.Policy{})
	var few, many tally
	for range rounds(5, 20) {
		_, sent := f.coldRound(10)
		few = append(few, sent)
		_, sent = f.coldRound(1000)
		many = append(many, sent)
	}
	few.within(t, "10 callers in each process")
	many.within(t, "1000 callers in each process")
}

// A tally holds, for each round, the commands of the process that sent most.
type tally []fleet.Stats

// within holds every round of the tally to commandBound. Without bounds it holds only the
// median to ten times that, which is still far from one command for each caller. The
// reason: on a loaded machine some callers may come after the end of the fetch, and each
// of them must read the entry for itself.
func (y tally) within(t *testing.T, what string) {
	t.Helper()
	slices.SortFunc(y, func(a, b fleet.Stats) int { return a.Total() - b.Total() })
	median, worst := y[len(y)/2], y[len(y)-1]
	allowed := commandBound
	if !bounds {
		allowed *= 10
	}
	t.Logf("commands of a process, %s: median %d, worst %d of %d: %v", what, median.Total(), worst.Total(), len(y), worst.Commands)
	if median.Total() > allowed || bounds && worst.Total() > allowed {
		t.Errorf("%s: want at most %d commands; median %v", what, allowed, median.Commands)
	}
}

// Pitfall 1.
func TestFleetSharesAFailureOnce(t *testing.T) {
	f := runFleet(t, 4, guard.Policy{})
	var tails series
	for range rounds(5, 50) {
		key := f.newKey()
		out := f.wait(f.everybody(fleet.Get{
			Keys: []string{key}, Callers: 100, At: time.Now().Add(50 * time.Millisecond),
			Fetch: fleet.Fetch{Duration: 400 * time.Millisecond, Fail: "boom"},
		})...)
		if n := len(f.fetches(key)); n != 1 {
			t.Errorf("%d fetches, want 1", n)
		}
		remote := 0
		for _, o := range out {
			if !errors.Is(o.Err, fleet.Sentinel("boom")) {
				t.Errorf("%d callers got %q and %v, want the fetch's error", o.N, o.Value, o.Err)
				continue
			}
			if o.Err.Remote {
				remote += o.N
			}
		}
		if n := callersOf(out); n != 400 || remote != 300 {
			t.Errorf("%d callers returned, %d with another process's error; want 400, 300", n, remote)
		}
		end := f.await(fleet.Of(key, fleet.FetchEnded))
		tails = append(tails, lastReturn(out).Sub(end.At))
	}
	tails.within(t, "from the end of the failed fetch to the return of the last of 400 callers", 0, 50*time.Millisecond)
}

// Pitfall 1: RetryAfter holds the whole fleet off.
func TestFleetFetchesNothingUntilRetryAfterHasPassed(t *testing.T) {
	const pause = time.Second
	f := runFleet(t, 4, guard.Policy{})
	key := f.newKey()
	get := fleet.Get{Keys: []string{key}, Callers: 10, Fetch: fleet.Fetch{Duration: 20 * time.Millisecond, Fail: "boom", RetryAfter: pause}}
	f.wait(f.everybody(get)...)
	began := f.await(fleet.Of(key, fleet.FetchEnded)).At
	for time.Since(began) < pause/2 {
		for _, o := range f.wait(f.everybody(get)...) {
			if !errors.Is(o.Err, fleet.Sentinel("boom")) {
				t.Errorf("%d callers got %q, %v during the pause", o.N, o.Value, o.Err)
			}
		}
	}
	if n := len(f.fetches(key)); n != 1 && time.Since(began) < pause {
		t.Errorf("%d fetches before the pause was over, want 1", n)
	}
	time.Sleep(time.Until(began.Add(pause + 100*time.Millisecond)))
	get.Fetch = fleet.Fetch{Value: "better"}
	for _, o := range f.wait(f.everybody(get)...) {
		if o.Value != "better" {
			t.Errorf("%d callers got %q, %v after the pause", o.N, o.Value, o.Err)
		}
	}
}

// Pitfall 2, both ways: no caller stays longer than its context lasts, be it
// the one that set off the fetch, and the others get their value.
func TestFleetCallerReturnsWhenItsOwnContextEnds(t *testing.T) {
	f := runFleet(t, 2, guard.Policy{})
	fetch := fleet.Fetch{Duration: 500 * time.Millisecond} // for a process that is late, too
	var overruns series
	for range rounds(10, 50) {
		key := f.newKey()
		hasty := fleet.Get{Keys: []string{key}, Callers: 100, Timeout: 100 * time.Millisecond, Fetch: fetch}
		patient := fleet.Get{Keys: []string{key}, Callers: 100, Fetch: fetch}
		first, second := f.Processes()[0], f.Processes()[1]
		impatient := []*fleet.Call{first.Go(hasty)}
		f.await(by(first, fleet.Of(key, fleet.FetchBegan)))
		impatient = append(impatient, second.Go(hasty))
		others := f.everybody(patient)
		for _, o := range f.wait(impatient...) {
			if !errors.Is(o.Err, context.DeadlineExceeded) {
				t.Errorf("%d hasty callers got %q, %v", o.N, o.Value, o.Err)
			}
			overruns = append(overruns, o.Overrun)
		}
		out := f.wait(others...)
		for _, o := range out {
			if o.Err != nil || o.Value == "" {
				t.Errorf("%d patient callers got %q, %v", o.N, o.Value, o.Err)
			}
		}
		if n := callersOf(out); n != 200 || len(f.fetches(key)) != 1 {
			t.Errorf("%d patient callers, %d fetches; want 200, 1", n, len(f.fetches(key)))
		}
	}
	overruns.within(t, "from the end of its context to the return of the last of 100 callers", 0, 10*time.Millisecond)
}
