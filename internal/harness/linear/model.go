package linear

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// The sequential model of one key is the set of values that a Get may return:
//
//	start f   a fetch starts: its value is added
//	Delete    the set is emptied
//	Set v     the set is {v}
//	DeleteTag values of fetches that started, or of Sets that had returned,
//	          before it was called are taken out of the set
//	Get -> x  x must be in the set, which does not change
//
// A history is linearizable to it if each operation can be given a point between
// its call and its return so that, in the order of the points, every Get returns
// a value of the set. That is P3, as a Delete that returned before a Get was
// called has its point before the Get's, and takes away all that was started
// before; and it is more than P3, which says nothing of the time in which a
// Delete or Set is under way: once a Get has returned the value of a Set that
// still runs, no Get that starts later may return an older one.
//
// It is not more than the protocol keeps. Delete and Set have the point of their
// script in Redis. The point of a Get is when Redis carried out the command that
// its result rests on (a read, an acquire, the fill), which the sharing rule says
// was sent after the Get's call; or, for a value that was never stored, right
// after the start of the fetch, before which the Get was called. Between a
// fetch's start and the end of its value in Redis there is no Delete and no Set,
// or the fill would have been refused.
//
// A DeleteTag is carried out in two steps, first the clock and then the records of
// the tags. A value that is fetched in between is new, and kept, though the old is still
// got until the second step: so it is no Delete with one point, which would take
// away both. It has the point of its second step for fetches that began before its call.
// That it keeps all the rest allows more than the protocol does, and no less than
// P3 forbids.
//
// A fetch is an operation of its own, with a point and no length, as the process
// that runs it notes the instant in the value. So "started before that Delete"
// needs no more than the order of points. A model that has the instant in its
// state could not tell, as a Delete's point is not known.
//
// The model leaves out that a value ends with its TTL, and that a newer fetch
// replaces an older one. P3 promises neither, and stale values are served on
// purpose.
//
// # Lost answers
//
// A Get with a lost answer, or an error, is left out: it changes nothing.
// A Delete that failed, or ended with its process, may be carried out at any later
// time or never. It is left out too, and nothing is lost by that: it only takes
// values away, so a history that is linearizable with it is so without it, and
// the other way round, with its point at the end. For a Set this is true as long
// as no Get has returned its value. One that was seen is taken to end with the
// history.
type state struct {
	// As fetches start in the order of their instants, those with values in the set
	// are neighbours: from <= n < to.
	from, to int
	set      int // the Set with its value in the set; 0: none
}

type input struct {
	kind Kind
	n    int  // start: the fetch, Set: the Set; both counted per key, Sets from 1
	set  bool // Get: n is a Set
	sets int  // DeleteTag: so many Sets had returned; n: so many fetches had started
}

const start Kind = 50

var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, in, _ any) (bool, any) { return step(s.(state), in.(input)) },
	Hash: func(s any) uint64 {
		st := s.(state)
		return (uint64(st.from)*1_000_003+uint64(st.to))*1_000_003 + uint64(st.set)
	},
}

func step(s state, in input) (bool, state) {
	switch in.kind {
	case start:
		return in.n == s.to, state{s.from, s.to + 1, s.set}
	case Set:
		return true, state{s.to, s.to, in.n}
	case Delete:
		return true, state{s.to, s.to, 0}
	case DeleteTag:
		s.from = max(s.from, in.n)
		if s.set <= in.sets {
			s.set = 0
		}
		return true, s
	}
	if in.set {
		return s.set == in.n, s
	}
	return s.from <= in.n && in.n < s.to, s
}

// operations is a key's history as the model has it.
func operations(history []Op) []porcupine.Operation {
	var last int64
	observed := map[Value]bool{}
	for _, o := range history {
		last = max(last, o.Return)
		if o.Kind == Get && !o.Failed {
			observed[o.Value] = true
		}
	}
	var ops []porcupine.Operation
	add := func(in input, call, ret int64) {
		ops = append(ops, porcupine.Operation{Input: in, Call: call, Return: ret})
	}
	number := map[Value]int{}
	sets := 0
	var setReturns, starts []int64        // each in order
	for _, o := range byReturn(history) { // so Sets are numbered as they return
		switch {
		case o.Failed:
		case o.Kind == Delete:
			add(input{kind: Delete}, o.Call, o.Return)
		case o.Kind == Set:
			sets++
			number[o.Value] = sets
			setReturns = append(setReturns, o.Return)
			add(input{kind: Set, n: sets}, o.Call, o.Return)
		}
	}
	fetches := 0
	for _, v := range inOrder(observed) {
		switch {
		case !v.Set:
			number[v] = fetches
			starts = append(starts, v.At)
			add(input{kind: start, n: fetches}, v.At, v.At)
			fetches++
		case number[v] == 0: // a Set with a lost answer
			sets++
			number[v] = sets
			add(input{kind: Set, n: sets}, v.At, max(last, v.At)+1)
		}
	}
	for _, o := range history {
		if o.Kind == DeleteTag && !o.Failed {
			in := input{kind: DeleteTag}
			in.n, _ = slices.BinarySearch(starts, o.Call)
			in.sets, _ = slices.BinarySearch(setReturns, o.Call)
			add(in, o.Call, o.Return)
		}
		if o.Kind == Get && !o.Failed {
			add(input{kind: Get, n: number[o.Value], set: o.Value.Set}, o.Call, o.Return)
		}
	}
	return ops
}

func byReturn(history []Op) []Op {
	return slices.SortedStableFunc(slices.Values(history), func(a, b Op) int { return cmp.Compare(a.Return, b.Return) })
}

func inOrder(values map[Value]bool) []Value {
	all := make([]Value, 0, len(values))
	for v := range values {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b Value) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.ID, b.ID)) })
	return all
}

// Check checks the history of one key. It answers porcupine.Unknown when that
// takes longer than the timeout.
func Check(history []Op, timeout time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model, operations(history), timeout)
}

// Reduce leaves out Gets that add nothing, for histories too long to check
// whole: of those that returned the same value it keeps the one that returned
// first and the one that was called last.
//
// A value is in the model's set for one stretch of time. A Get that returned it
// says that this stretch starts before the Get's return and ends after its call;
// so all of them together say no more than those two.
func Reduce(history []Op) []Op {
	type pair struct{ first, last int }
	pairs := map[Value]pair{}
	var kept []Op
	for i, o := range history {
		switch {
		case o.Kind != Get:
			kept = append(kept, o)
			continue
		case o.Failed:
			continue
		}
		p, ok := pairs[o.Value]
		if !ok {
			p = pair{i, i}
		}
		if o.Return < history[p.first].Return {
			p.first = i
		}
		if o.Call > history[p.last].Call {
			p.last = i
		}
		pairs[o.Value] = p
	}
	for _, p := range pairs {
		kept = append(kept, history[p.first])
		if p.last != p.first {
			kept = append(kept, history[p.last])
		}
	}
	return kept
}

// Minimise removes calls from a history that is not linearizable, in their order, as
// long as it stays so, and returns the rest.
func Minimise(history []Op, timeout time.Duration) []Op {
	left := Reduce(history)
	slices.SortFunc(left, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	for size := len(left) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(left); {
			less := slices.Delete(slices.Clone(left), i, i+size)
			if Check(less, timeout) == porcupine.Illegal {
				left = less
			} else {
				i += size
			}
		}
	}
	return left
}

// A Violation of P3 is a Get that returned a value which an earlier Delete or
// Set had invalidated.
type Violation struct{ Invalidated, Got Op }

// Direct checks the history of one key by the words of P3 alone, which needs no
// search: no Get returns a value if a Delete or Set was called after that value's
// fetch had started, or after the Set that brought it had returned, and returned
// before the Get was called.
func Direct(history []Op) []Violation {
	var ends []Op // invalidations, in the order of their returns
	returned := map[Value]int64{}
	for _, o := range history {
		if o.Kind == Get || o.Failed {
			continue
		}
		ends = append(ends, o)
		if o.Kind == Set {
			returned[o.Value] = o.Return
		}
	}
	slices.SortFunc(ends, func(a, b Op) int { return cmp.Compare(a.Return, b.Return) })
	latest := make([]int, len(ends)) // of the first so many, the one called last
	for i := range ends {
		latest[i] = i
		if i > 0 && ends[latest[i-1]].Call > ends[i].Call {
			latest[i] = latest[i-1]
		}
	}
	var all []Violation
	for _, o := range history {
		if o.Kind != Get || o.Failed {
			continue
		}
		since := o.Value.At
		if o.Value.Set {
			since = math.MaxInt64
			if at, ok := returned[o.Value]; ok {
				since = at
			}
		}
		n, _ := slices.BinarySearchFunc(ends, o.Call, func(e Op, call int64) int { return cmp.Compare(e.Return, call) })
		if n > 0 && ends[latest[n-1]].Call > since {
			all = append(all, Violation{ends[latest[n-1]], o})
		}
	}
	return all
}
