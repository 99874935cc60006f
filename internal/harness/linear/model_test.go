package linear_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/stampedeguard/stampede/internal/harness/linear"
)

func fetched(at int64) linear.Value { return linear.Value{At: at, ID: uint64(at)} }

func wasSet(at int64) linear.Value { return linear.Value{Set: true, At: at, ID: uint64(at)} }

func get(call, ret int64, v linear.Value) linear.Op {
	return linear.Op{Kind: linear.Get, Call: call, Return: ret, Value: v}
}

func set(call, ret int64) linear.Op {
	return linear.Op{Kind: linear.Set, Call: call, Return: ret, Value: wasSet(call)}
}

func del(call, ret int64) linear.Op { return linear.Op{Kind: linear.Delete, Call: call, Return: ret} }

func delTag(call, ret int64) linear.Op {
	return linear.Op{Kind: linear.DeleteTag, Call: call, Return: ret}
}

func failed(o linear.Op) linear.Op {
	o.Failed = true
	return o
}

func TestModelTellsHistories(t *testing.T) {
	type history = []linear.Op
	for _, c := range []struct {
		name         string
		history      history
		linearizable bool
		direct       bool // the words of P3 alone forbid it
	}{
		{"a fetch's value is got", history{get(10, 30, fetched(20))}, true, false},
		{"a value nobody has fetched yet", history{get(10, 15, fetched(20))}, false, false},
		{"an older value after a newer one", history{get(10, 30, fetched(20)), get(40, 60, fetched(50)), get(70, 80, fetched(20))}, true, false},
		{"got before a Delete", history{get(10, 30, fetched(20)), del(40, 50)}, true, false},
		{"got after a Delete", history{get(10, 30, fetched(20)), del(40, 50), get(60, 70, fetched(20))}, false, true},
		{"a fetch from before a Delete, first seen after it", history{del(40, 50), get(60, 70, fetched(20))}, false, true},
		{"got while a Delete runs", history{del(40, 100), get(60, 70, fetched(20)), get(80, 90, fetched(20))}, true, false},
		{"a fetch that started while a Delete ran", history{del(40, 100), get(110, 120, fetched(50))}, true, false},
		{"after a Delete whose answer was lost", history{failed(del(40, 50)), get(60, 70, fetched(20))}, true, false},
		{"got after a DeleteTag", history{get(10, 30, fetched(20)), delTag(40, 50), get(60, 70, fetched(20))}, false, true},
		{"a fetch from before a DeleteTag, first seen after it", history{delTag(40, 50), get(60, 70, fetched(20))}, false, true},
		{"a fetch that started while a DeleteTag ran, beside an older value", history{
			delTag(40, 100), get(60, 70, fetched(20)), get(110, 120, fetched(50)),
		}, true, false},
		{"an older value comes back while a DeleteTag runs", history{
			delTag(40, 100), get(60, 70, fetched(20)), get(110, 120, fetched(20)),
		}, false, true},
		{"a Set from before a DeleteTag", history{set(10, 20), delTag(30, 40), get(50, 60, wasSet(10))}, false, true},
		{"a Set beside a DeleteTag", history{set(10, 35), delTag(30, 40), get(50, 60, wasSet(10))}, true, false},
		{"what a Set replaced, after a DeleteTag beside it", history{set(10, 35), delTag(30, 40), get(50, 60, fetched(5))}, false, true},
		{"a Set's value is got", history{set(10, 20), get(30, 40, wasSet(10))}, true, false},
		{"what a Set replaced", history{set(30, 40), get(50, 60, fetched(20))}, false, true},
		{"a fetch after a Set", history{set(10, 20), get(40, 60, fetched(50)), get(70, 80, wasSet(10))}, true, false},
		{"what a Set replaced by a Set", history{set(10, 20), set(30, 40), get(50, 60, wasSet(10))}, false, true},
		{"two Sets at once, either may win", history{set(10, 40), set(20, 30), get(50, 60, wasSet(10))}, true, false},
		{"two Sets at once, both can't win", history{set(10, 40), set(20, 30), get(50, 60, wasSet(10)), get(70, 80, wasSet(20))}, false, false},
		{"a deleted Set", history{set(10, 20), del(30, 40), get(50, 60, wasSet(10))}, false, true},
		{"seen of a Set that still runs, then not", history{
			set(30, 100), get(40, 50, wasSet(30)), get(60, 70, fetched(20)),
		}, false, false},
		{"a Set whose answer was lost, late", history{
			failed(set(30, 40)), get(50, 60, fetched(20)), get(70, 80, wasSet(30)),
		}, true, false},
		{"a Set whose answer was lost, then what it replaced", history{
			failed(set(30, 40)), get(70, 80, wasSet(30)), get(90, 95, fetched(20)),
		}, false, false},
		{"a Set by a process that was killed", history{
			get(50, 60, fetched(20)), get(70, 80, wasSet(30)), get(90, 95, fetched(20)),
		}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := porcupine.Ok
			if !c.linearizable {
				want = porcupine.Illegal
			}
			if got := linear.Check(c.history, time.Minute); got != want {
				t.Errorf("the history is %v, want %v", got, want)
			}
			if direct := linear.Direct(c.history); len(direct) > 0 != c.direct {
				t.Errorf("direct check: %+v", direct)
			}
			if got := linear.Check(linear.Reduce(c.history), time.Minute); got != want {
				t.Errorf("the reduced history is %v, want %v", got, want)
			}
		})
	}
}

// Histories of a few random calls: the calls left out of long ones make no
// difference, and no history that breaks the words of P3 is linearizable.
func TestReducedAndWholeHistoriesAreAlike(t *testing.T) {
	count := map[string]int{}
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 0))
		var history []linear.Op
		var values []linear.Value
		for range 1 + r.IntN(3) {
			values = append(values, fetched(r.Int64N(100)))
		}
		for range r.IntN(6) {
			o := set(r.Int64N(100), 0)
			switch r.IntN(4) {
			case 0:
				o = del(o.Call, 0)
			case 1:
				o = delTag(o.Call, 0)
			default:
				values = append(values, o.Value)
			}
			o.Return = o.Call + r.Int64N(30)
			o.Failed = r.IntN(6) == 0
			history = append(history, o)
		}
		for range r.IntN(10) {
			v := values[r.IntN(len(values))]
			call := max(0, v.At-10) + r.Int64N(30)
			history = append(history, get(call, call+r.Int64N(30), v))
		}
		whole := linear.Check(history, time.Minute)
		reduced := linear.Check(linear.Reduce(history), time.Minute)
		direct := linear.Direct(history)
		count[fmt.Sprintf("%v, %v by the words of P3", whole, len(direct) == 0)]++
		if whole != reduced {
			t.Fatalf("whole: %v, reduced: %v\n%s", whole, reduced, describe(history))
		}
		if len(direct) > 0 && whole != porcupine.Illegal {
			t.Fatalf("%v, but %+v\n%s", whole, direct, describe(history))
		}
	}
	t.Logf("%v", count)
	if len(count) < 3 {
		t.Errorf("too much alike: %v", count)
	}
}
