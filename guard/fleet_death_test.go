package guard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/fleet"
)

// held makes one process fetch the key, never to end, and the others wait for it.
func (f *fleetTest) held(key string, hang fleet.Get) (holder *fleet.Process, waiting []*fleet.Call) {
	f.Helper()
	all := f.Processes()
	holder = all[rand.IntN(len(all))]
	holder.Go(hang)
	f.await(by(holder, fleet.Of(key, fleet.FetchBegan)))
	for _, p := range all {
		if p != holder {
			waiting = append(waiting, p.Go(fleet.Get{
				Keys: []string{key}, Callers: 10, Fetch: fleet.Fetch{Duration: 50 * time.Millisecond},
			}))
			f.await(by(p, fleet.Of(key, cache.WaitBegan)))
		}
	}
	return holder, waiting
}

// killedHolders is one series of rounds in which the fetching process dies.
func (f *fleetTest) killedHolders(n int) series {
	f.Helper()
	var replaced series
	for range n {
		key := f.newKey()
		holder, waiting := f.held(key, fleet.Get{Keys: []string{key}, Callers: 10, Fetch: fleet.Fetch{Hang: true}})
		time.Sleep(rand.N(400 * time.Millisecond)) // anywhere between two looks
		killed := time.Now()
		f.must(holder.Kill())
		out := f.wait(waiting...)
		fetches := f.fetches(key)
		if len(fetches) != 2 || fetches[1].Attempt != 2 {
			f.Errorf("fetches %+v, want a second attempt", fetches)
			continue
		}
		replaced = append(replaced, fetches[1].At.Sub(killed))
		for _, o := range out {
			if o.Err != nil || !o.Fetched().Equal(fetches[1].At) {
				f.Errorf("%d callers got %q, %v; want the value of the new holder", o.N, o.Value, o.Err)
			}
		}
		_, err := f.Start(f.ctx)
		f.must(err)
	}
	return replaced
}

// Pitfall 10 is here too: of all waiters one is elected.
func TestFleetReplacesAKilledHolder(t *testing.T) {
	f := runFleet(t, 3, guard.Policy{Lease: 5 * time.Second})
	f.killedHolders(rounds(10, 50)).
		within(t, "from the holder's death to the next fetch", 300*time.Millisecond, time.Second)
}

func TestFleetReplacesAKilledHolderOnACluster(t *testing.T) {
	f := runFleetOnCluster(t, 3, guard.Policy{Lease: 5 * time.Second})
	f.killedHolders(rounds(10, 50)).
		within(t, "from the holder's death to the next fetch", 300*time.Millisecond, time.Second)
}

// A frozen holder is alive as far as any other process can see, so its lease has to end.
// When the holder thaws, its calls are refused, both while its successor fetches and after
// that (P2; pitfall 5).
func TestFleetFrozenHolderIsReplacedAfterItsLease(t *testing.T) {
	f := runFleet(t, 3, guard.Policy{Lease: time.Second})
	var late series
	for i := range rounds(4, 20) {
		key := f.newKey()
		holder, waiting := f.held(key, fleet.Get{
			Keys: []string{key}, Callers: 10, Fetch: fleet.Fetch{Value: "old", Duration: 200 * time.Millisecond},
		})
		f.must(holder.Stop())
		ends := time.Now().Add(f.leaseLeft())
		next := f.await(func(e fleet.Event) bool { return e.Kind == fleet.FetchBegan && e.PID != holder.PID() })
		if early := ends.Sub(next.At); early > 5*time.Millisecond {
			t.Errorf("taken over %v before the lease ended", early)
		}
		late = append(late, next.At.Sub(ends))
		// In every other round the successor has filled by then.
		stored := i%2 == 0
		if stored {
			f.await(fleet.Of(key, cache.FillStored))
		}
		before := f.dump()
		f.must(holder.Cont())
		f.await(by(holder, fleet.Of(key, cache.FillRefused)))
		out := f.wait(waiting...)
		for _, o := range out {
			if o.Err != nil || !o.Fetched().Equal(next.At) {
				t.Errorf("%d callers got %q, %v; want the value of the new holder", o.N, o.Value, o.Err)
			}
		}
		if after := f.dump(); stored && !maps.Equal(before, after) {
			t.Errorf("the thawed holder changed the stored entry:\n%q\n%q", before, after)
		}
		for _, p := range f.Processes() {
			got, err := p.Peek(f.ctx, key)
			f.must(err)
			if got.Value != next.At.Format(time.RFC3339Nano) {
				t.Errorf("stored: %+v, want the value of the new holder", got)
			}
		}
		if n := len(f.fetches(key)); n != 2 {
			t.Errorf("%d fetches, want 2", n)
		}
	}
	late.within(t, "from the end of the frozen holder's lease to the next fetch", 0, 100*time.Millisecond)
}

// leaseLeft is for how long the one lease there is lasts.
func (f *fleetTest) leaseLeft() time.Duration {
	f.Helper()
	c := f.server.Client()
	defer c.Close()
	keys, err := c.Keys(f.ctx, "*:lease").Result()
	f.must(err)
	if len(keys) != 1 {
		f.Fatalf("leases %q, want one", keys)
	}
	return c.PTTL(f.ctx, keys[0]).Val()
}

// dump is everything that is stored.
func (f *fleetTest) dump() map[string]string {
	f.Helper()
	c := f.server.Client()
	defer c.Close()
	keys, err := c.Keys(f.ctx, "*").Result()
	f.must(err)
	all := map[string]string{}
	for _, k := range keys {
		all[k] = c.Dump(f.ctx, k).Val()
	}
	return all
}

// P7: if the fetch of a key ends its process, it ends MaxAttempts processes and no more.
func TestFleetQuarantinesAKeyAfterDeaths(t *testing.T) {
	f := runFleet(t, 6, guard.Policy{MaxAttempts: 3})
	for _, lift := range []struct {
		name string
		call func(p *fleet.Process, key string) (fleet.Span, error)
	}{
		{"Reset", func(p *fleet.Process, key string) (fleet.Span, error) { return p.Reset(f.ctx, key) }},
		{"Set", func(p *fleet.Process, key string) (fleet.Span, error) { return p.Set(f.ctx, key, "set") }},
	} {
		key := f.newKey()
		quarantined := 0
		for _, c := range f.everybody(fleet.Get{
			Keys: []string{key}, Callers: 10, Fetch: fleet.Fetch{Duration: 50 * time.Millisecond, Exit: 3},
		}) {
			out, err := c.Wait(f.ctx)
			switch {
			case errors.Is(err, fleet.ErrDied):
			case err != nil:
				t.Fatal(err)
			case len(out) == 1 && errors.Is(out[0].Err, guard.ErrQuarantined):
				quarantined++
			default:
				t.Errorf("got %+v, want ErrQuarantined", out)
			}
		}
		if n := len(f.fetches(key)); n != 3 || quarantined != 3 {
			t.Errorf("%d fetches, %d processes were told of a quarantine; want 3 and 3", n, quarantined)
		}
		p := f.Processes()[0]
		get := fleet.Get{Keys: []string{key}, Fetch: fleet.Fetch{Value: "fetched"}}
		if _, err := p.Delete(f.ctx, key); err != nil {
			t.Error(err)
		}
		if o := f.get(p, get)[0]; !errors.Is(o.Err, guard.ErrQuarantined) {
			t.Errorf("after Delete: %q, %v; want ErrQuarantined", o.Value, o.Err)
		}
		if _, err := lift.call(p, key); err != nil {
			t.Error(err)
		}
		want := map[string]string{"Reset": "fetched", "Set": "set"}[lift.name]
		if o := f.get(p, get)[0]; o.Value != want {
			t.Errorf("after %s: %q, %v; want %q", lift.name, o.Value, o.Err, want)
		}
		// A quarantine that Set lifted stays lifted.
		if _, err := p.Delete(f.ctx, key); err != nil {
			t.Error(err)
		}
		if o := f.get(p, get)[0]; o.Value != "fetched" {
			t.Errorf("after %s and Delete: %q, %v; want a fetch", lift.name, o.Value, o.Err)
		}
		for range 3 {
			_, err := f.Start(f.ctx)
			f.must(err)
		}
	}
}

// A workload keeps processes busy, each until it is closed, and counts the outcomes of
// their callers.
type workload struct {
	*fleetTest
	keys []string
	ctx  context.Context
	wg   sync.WaitGroup

	mu             sync.Mutex
	served, closed int
}

func (w *workload) on(p *fleet.Process) {
	w.wg.Go(func() {
		for w.ctx.Err() == nil {
			out, err := p.Get(w.Context(), fleet.Get{
				Keys: w.keys, Callers: 40, Spread: 20 * time.Millisecond,
				Fetch: fleet.Fetch{Duration: 30 * time.Millisecond},
			})
			if errors.Is(err, fleet.ErrDied) {
				return
			}
			w.count(out)
		}
	})
}

func (w *workload) count(outcomes []fleet.Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range outcomes {
		switch {
		case o.Err == nil:
			w.served += o.N
		case errors.Is(o.Err, guard.ErrClosed):
			w.closed += o.N
		default:
			w.Errorf("%d callers of %s got %v", o.N, o.Key, o.Err)
		}
	}
}

// P7: a process that shuts down in order does not count as dead. This holds even where one
// death is enough, and while keys are invalidated and fetched all the time.
func TestFleetRollingRestartQuarantinesNothing(t *testing.T) {
	f := runFleet(t, 5, guard.Policy{TTL: 50 * time.Millisecond, MaxAttempts: 1})
	f.Log.Forget()
	ctx, stop := context.WithCancel(f.ctx)
	defer stop()
	w := &workload{fleetTest: f, ctx: ctx}
	for i := range 20 {
		w.keys = append(w.keys, fmt.Sprint("rolling-", i))
	}
	invalidator, serving := f.Processes()[0], f.Processes()[1:]
	w.wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := invalidator.Delete(f.ctx, w.keys[rand.IntN(len(w.keys))]); err != nil {
				f.Error(err)
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	for _, p := range serving {
		w.on(p)
	}
	restarts := rounds(8, 40)
	for range restarts {
		time.Sleep(150 * time.Millisecond)
		f.must(serving[0].Close(f.ctx))
		p, err := f.Start(f.ctx)
		f.must(err)
		serving = append(serving[1:], p)
		w.on(p)
	}
	stop()
	w.wg.Wait()
	count := func(kinds ...cache.EventKind) int {
		return len(f.Log.All(func(e fleet.Event) bool { return slices.Contains(kinds, e.Kind) }))
	}
	if n := count(cache.KeyQuarantined); n > 0 {
		t.Errorf("%d quarantines", n)
	}
	f.noFetchWithoutLease()
	released := count(cache.LeaseReleased)
	if released == 0 {
		t.Error("no process was closed in mid-fetch")
	}
	t.Logf("%d restarts, %d fetches, %d leases released; %d callers served, %d turned away by a process that closed",
		restarts, count(fleet.FetchBegan), released, w.served, w.closed)
}
