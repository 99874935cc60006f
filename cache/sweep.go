package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// A sweep reads names by MGETs alone, from the one node there is. It is how
// ReadMany looks at its names first: as a rule it has seen before what it finds,
// and knows its age.
type sweep struct {
	s     *Redis
	names []string
	mgets []*redis.StringSliceCmd // of mgetKeys names each
}

// sweep reads names, and calls judge for each of them with its place: those of
// unknown age are read again, by a query. It returns how many it has dealt with:
// not all, once MGET is refused.
func (s *Redis) sweep(ctx context.Context, n *node, names []string, judge judgement) (first int) {
	for some := range slices.Chunk(names, manyKeys) {
		if s.noMGET.Load() {
			return first
		}
		w := &sweep{s: s, names: some}
		err := s.readWithin(ctx, n, s.manyTimeout(len(some)), w.send)
		if err != nil { // that won't have changed for the others
			judge.failed(first, len(names), err)
			return len(names)
		}
		again := w.judge(first, judge)
		first += len(some)
		if err = s.readAgain(ctx, n, names, again, judge); err != nil {
			judge.failed(first, len(names), err)
			return len(names)
		}
	}
	return first
}

// readAgain reads the names of some places by a query. It returns the error that
// all of them have.
func (s *Redis) readAgain(ctx context.Context, n *node, names []string, places []int, judge judgement) error {
	if len(places) == 0 {
		return nil
	}
	q := &query{s: s, names: at(names, places)}
	if err := q.sendWithin(ctx, n); err != nil {
		for _, i := range places {
			judge(i, nil, err)
		}
		return err
	}
	q.settle()
	var r Reading
	for j, i := range places {
		q.judge(j, i, &r, judge)
	}
	return nil
}

// send sends the sweep.
func (w *sweep) send(ctx context.Context) error {
	mgets := (len(w.names) + mgetKeys - 1) / mgetKeys
	w.mgets = make([]*redis.StringSliceCmd, 0, mgets)
	l := cmdList{ctx, make([]any, 0, len(w.names)+mgets), make([]redis.Cmder, 0, mgets)}
	for some := range slices.Chunk(w.names, mgetKeys) {
		l.args = append(l.args, "mget")
		for i := range some {
			l.args = append(l.args, (*keyArg)(&some[i]))
		}
		w.mgets = append(w.mgets, l.mget(1+len(some)))
	}
	pipe := w.s.client.Pipeline()
	_ = pipe.BatchProcess(ctx, l.all...)
	if _, err := pipe.Exec(ctx); err != nil && !slices.ContainsFunc(w.mgets, mgetAnswered) {
		return err
	}
	return nil
}

// judge calls it for all names but those whose age has to be asked for: it returns
// their places. The first name's place is first.
func (w *sweep) judge(first int, judge judgement) (again []int) {
	now := time.Now()
	w.s.ages.check(now)
	for i, c := range w.mgets {
		from, to := i*mgetKeys, min((i+1)*mgetKeys, len(w.names))
		values, err := c.Result()
		if err == nil && len(values) != to-from {
			err = fmt.Errorf("%w: MGET answered %d values", ErrDamaged, len(values))
		}
		switch err = classify("read", err); {
		case err == nil:
			again = w.judgeValues(first+from, values, now, judge, again)
		case errors.Is(err, ErrRefused):
			w.s.noMGET.Store(true)
			for i := from; i < to; i++ {
				again = append(again, first+i)
			}
		default:
			judge.failed(first+from, first+to, err)
		}
	}
	return again
}

// judgeValues is judge for what one MGET has found. It appends to again.
func (w *sweep) judgeValues(first int, values []string, now time.Time, judge judgement, again []int) []int {
	ages := w.findAges(values, now)
	var r Reading // is only lent
	for i, v := range values {
		if ages[i] == ageUnknown {
			again = append(again, first+i)
			continue
		}
		r = Reading{}
		if v != "" && r.parse(unshared(v)) {
			r.setAge(ages[i])
		}
		judge(first+i, &r, nil)
	}
	return again
}

// ageUnknown is the age of an entry that has to be asked for.
const ageUnknown = -1

// findAges returns the ages of entries by place. What isn't there has none.
func (w *sweep) findAges(values []string, now time.Time) (found [mgetKeys]time.Duration) {
	ages := &w.s.ages
	ages.mu.RLock()
	defer ages.mu.RUnlock()
	for i, v := range values {
		switch {
		case v == "":
		case len(v) < HeaderSize: // damaged: let the query judge
			found[i] = ageUnknown
		default:
			version, ttl := versionOf(v)
			if age, ok := ages.find(version, ttl, now); ok {
				found[i] = max(0, age)
			} else {
				found[i] = ageUnknown
			}
		}
	}
	return found
}
