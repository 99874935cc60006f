package linear_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/linear"
)

// searchTimeout bounds the search for one key's linearization, which takes
// milliseconds. A search without a result by then fails the test.
const searchTimeout = 30 * time.Second

func config(p guard.Policy) linear.Config {
	p.Reserve.MaxBytes = guard.Off // the model has no exception for processes that are cut off
	return linear.Config{
		Store:  cache.Options{Namespace: "ns", RedisTimeout: 250 * time.Millisecond},
		Policy: p,
	}
}

// shortLived has values that end all the time, and leases that a process which
// is frozen or cut off for less than a second loses.
var shortLived = guard.Policy{
	TTL: 60 * time.Millisecond, Jitter: 0.5,
	Lease: 300 * time.Millisecond, FetchTimeout: time.Second,
	ErrorPause: 20 * time.Millisecond,
}

func withStale(p guard.Policy) guard.Policy {
	p.Stale, p.StaleIfError = 150*time.Millisecond, 250*time.Millisecond
	return p
}

// contended has a few callers in each process call for a few keys, so that
// nearly every call meets others of its key.
var contended = linear.Load{
	Workers: 6, Think: 8 * time.Millisecond,
	Keys: 6, Era: time.Second,
	Sets: 0.04, Deletes: 0.08,
	FetchMin: time.Millisecond, FetchMax: 20 * time.Millisecond,
	FetchFails: 0.05, Impatient: 0.05,
	Batches: 0.3,
}

// withTags is contended, with keys that share tags by which they are deleted.
func withTags(l linear.Load) linear.Load {
	l.Deletes, l.TagDeletes = 0.04, 0.06
	return l
}

func until(d time.Duration, l linear.Load) linear.Load {
	l.Until = linear.Now() + int64(d)
	return l
}

func TestHistoriesAreLinearizable(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy guard.Policy
		load   linear.Load
	}{
		{"fresh values only", shortLived, contended},
		{"stale while revalidate", withStale(shortLived), contended},
		{"fresh values only, with tags", shortLived, withTags(contended)},
		{"stale while revalidate, with tags", withStale(shortLived), withTags(contended)},
	} {
		t.Run(c.name, func(t *testing.T) {
			crew := linear.Run(t, 3, config(c.policy))
			d := 4 * time.Second
			if full {
				d = time.Minute
			}
			must(t, crew.Carry(deadline(t, d), until(d, c.load)))
			check(t, crew.Take())
		})
	}
}

func TestHistoriesAreLinearizableThroughFaults(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy guard.Policy
		load   linear.Load
	}{
		{"fresh values only", shortLived, contended},
		{"stale while revalidate", withStale(shortLived), contended},
		{"stale while revalidate, with tags", withStale(shortLived), withTags(contended)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := config(c.policy)
			cfg.Breakable = true
			crew := linear.Run(t, 3, cfg)
			d := 14 * time.Second
			if full {
				d = 2 * time.Minute
			}
			count, err := crew.CarryThroughFaults(deadline(t, d), until(d, c.load))
			must(t, err)
			for _, name := range linear.Faults() {
				if count[name] == 0 {
					t.Errorf("there was no fault %q", name)
				}
			}
			t.Logf("faults: %v", count)
			check(t, crew.Take())
		})
	}
}

// mostTold bounds how many violations are described.
const mostTold = 3

// check fails the test unless all histories are linearizable, and say something.
func check(t *testing.T, histories map[uint32][]linear.Op) {
	t.Helper()
	began := time.Now()
	s := stats{}
	var longest time.Duration
	illegal, direct := 0, 0
	for _, key := range slices.Sorted(maps.Keys(histories)) {
		history := histories[key]
		s.add(history)
		searching := time.Now()
		result := linear.Check(history, searchTimeout)
		longest = max(longest, time.Since(searching))
		switch result {
		case porcupine.Illegal:
			if illegal++; illegal <= mostTold {
				t.Errorf("key %d is not linearizable; of its %d calls, these matter:\n%s",
					key, len(history), describe(linear.Minimise(history, searchTimeout)))
			}
		case porcupine.Unknown:
			t.Errorf("key %d: not decided in %v, %d calls", key, searchTimeout, len(history))
		}
		direct += checkDirectly(t, key, history)
	}
	if illegal > 0 || direct > 0 {
		t.Errorf("%d histories are not linearizable; %d Gets break P3 by its words", illegal, direct)
	}
	t.Logf("%d histories: %v; checked in %v, the longest search took %v",
		len(histories), s, time.Since(began).Round(time.Millisecond), longest.Round(time.Microsecond))
	s.mustSaySomething(t, 100)
	if s.bySource[linear.FromBatch] < 1000 {
		t.Errorf("too little was got by batches: %v", s)
	}
}

// checkDirectly answers how many Gets of a key break P3, and shows the first.
func checkDirectly(t *testing.T, key uint32, history []linear.Op) int {
	t.Helper()
	all := linear.Direct(history)
	if len(all) > 0 {
		t.Errorf("%d Gets of key %d break P3, the first:\n%s", len(all), key, describe([]linear.Op{all[0].Invalidated, all[0].Got}))
	}
	return len(all)
}

// stats count the calls of histories.
type stats struct {
	gets, sets, deletes, tagDeletes, failed, lostChanges int
	bySource                                             map[guard.Source]int
}

func (s *stats) add(history []linear.Op) {
	if s.bySource == nil {
		s.bySource = map[guard.Source]int{}
	}
	for _, o := range history {
		switch {
		case o.Failed && o.Kind == linear.Get:
			s.failed++
		case o.Failed:
			s.lostChanges++
		case o.Kind == linear.Set:
			s.sets++
		case o.Kind == linear.Delete:
			s.deletes++
		case o.Kind == linear.DeleteTag:
			s.tagDeletes++
		default:
			s.gets++
			s.bySource[o.Source]++
		}
	}
}

func (s stats) String() string {
	return fmt.Sprintf("%d Gets %v, %d Sets, %d Deletes, %d DeleteTags, %d Gets without a value, %d changes that may or may not have been made",
		s.gets, s.bySource, s.sets, s.deletes, s.tagDeletes, s.failed, s.lostChanges)
}

func (s stats) mustSaySomething(t *testing.T, deletes int) {
	t.Helper()
	if s.gets < 1000 || s.deletes+s.tagDeletes < deletes || s.bySource[guard.Waited] == 0 || s.bySource[guard.Fetched] == 0 || s.bySource[guard.FromStore] == 0 {
		t.Errorf("too little happened to show anything: %v", s)
	}
}

// describe is a history to be read, in the order of calls.
func describe(history []linear.Op) string {
	history = slices.Clone(history)
	slices.SortFunc(history, func(a, b linear.Op) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	var zero int64
	for i, o := range history {
		if at := o.Value.At; at != 0 && (zero == 0 || at < zero) {
			zero = at
		}
		if i == 0 && (zero == 0 || o.Call < zero) {
			zero = o.Call
		}
	}
	ms := func(at int64) string { return fmt.Sprintf("%.3f", float64(at-zero)/1e6) }
	for _, o := range history {
		fmt.Fprintf(&b, "  %s to %s ms: ", ms(o.Call), ms(o.Return))
		what := "what a fetch brought"
		if o.Value.Set {
			what = "what a Set brought"
		}
		switch o.Kind {
		case linear.Get:
			source := o.Source.String()
			if o.Source == linear.FromBatch {
				source = "one of a batch"
			}
			fmt.Fprintf(&b, "Get (%s), %s that began at %s", source, what, ms(o.Value.At))
		case linear.Set:
			b.WriteString("Set")
		case linear.Delete:
			b.WriteString("Delete")
		case linear.DeleteTag:
			b.WriteString("DeleteTag")
		}
		if o.Failed {
			b.WriteString(", failed")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// deadline bounds something that is to take a while.
func deadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d+time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
