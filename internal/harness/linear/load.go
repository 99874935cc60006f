package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A Load is the task of each process: so many workers that make one call after
// the other, until a time or for a number of Gets.
type Load struct {
	Until   int64 // no call starts after this instant; 0: see Gets
	Gets    int   // calls of Get by this process; 0: see Until
	Workers int
	Think   time.Duration // at most, between a worker's calls

	// Keys are numbered from First; a worker draws one for each call, with a Zipf
	// exponent or, if that is zero, evenly. With an Era, all processes turn to as
	// many new keys whenever that has passed, so that no history grows too long to
	// be checked.
	First, Keys int
	Zipf        float64
	Era         time.Duration

	Sets, Deletes float64       // of a worker's calls; the rest are Gets
	TagDeletes    float64       // and so many are DeleteTags; 0: values carry no tags
	Batches       float64       // so many Gets are one of several keys, each a Get of its own to the check
	BatchKeys     int           // at most, in each; 0: as many as Keys
	DeleteEvery   time.Duration // one more worker deletes at this rate; 0: none

	FetchMin, FetchMax time.Duration
	FetchFails         float64       // so many fetches fail
	Impatient          float64       // so many Gets have a context that ends during the fetch
	TTLMin, TTLMax     time.Duration // drawn by each fetch; 0: the policy's

	// Calm says that no Get may fail: the child complains of one that does.
	Calm bool
}

// A worker makes calls and tells of them.
type worker struct {
	*child
	load *Load
	zipf *rand.Zipf
}

// run carries out a load, and returns when the last call has.
func (c *child) run(l *Load) {
	c.tagged.Store(l.TagDeletes > 0)
	var all sync.WaitGroup
	budget := make(chan struct{}, max(1, l.Gets))
	for range l.Gets {
		budget <- struct{}{}
	}
	close(budget)
	left := func() bool {
		if l.Gets > 0 {
			_, ok := <-budget
			return ok
		}
		return Now() < l.Until
	}
	done := make(chan struct{})
	if l.DeleteEvery > 0 {
		all.Go(func() { c.worker(l).deleteUntil(done) })
	}
	var workers sync.WaitGroup
	for range l.Workers {
		workers.Go(func() {
			for w := c.worker(l); left(); w.think() {
				w.call()
			}
		})
	}
	workers.Wait()
	close(done)
	all.Wait()
}

func (c *child) worker(l *Load) *worker {
	w := &worker{child: c, load: l}
	if l.Zipf > 0 {
		w.zipf = rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), l.Zipf, 1, uint64(l.Keys-1))
	}
	return w
}

func (w *worker) think() {
	if w.load.Think > 0 {
		time.Sleep(rand.N(w.load.Think))
	}
}

func (w *worker) deleteUntil(done <-chan struct{}) {
	tick := time.NewTicker(w.load.DeleteEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.delete(w.key())
		case <-done:
			return
		}
	}
}

func (w *worker) key() uint32 {
	l := w.load
	n := l.First
	if l.Era > 0 {
		n += int(Now()/int64(l.Era)) % 1_000_000 * l.Keys
	}
	if w.zipf != nil {
		return uint32(n) + uint32(w.zipf.Uint64())
	}
	return uint32(n + rand.IntN(l.Keys))
}

func (w *worker) call() {
	key := w.key()
	switch p := rand.Float64(); {
	case p < w.load.Sets:
		w.set(key)
	case p < w.load.Sets+w.load.Deletes:
		w.delete(key)
	case p < w.load.Sets+w.load.Deletes+w.load.TagDeletes:
		w.deleteTag(key)
	case rand.Float64() < w.load.Batches:
		w.getMany(key)
	default:
		w.get(key)
	}
}

// getMany gets the key and others in one call, and tells of each.
func (w *worker) getMany(key uint32) {
	n := w.load.BatchKeys
	if n == 0 {
		n = w.load.Keys
	}
	keys := []uint32{key}
	names := []string{keyName(key)}
	for range rand.IntN(n) {
		if key := w.key(); !slices.Contains(keys, key) {
			keys, names = append(keys, key), append(names, keyName(key))
		}
	}
	called := Now()
	values, err := w.guard.GetMany(context.Background(), names, w.fetchMany)
	returned := Now()
	var batch *guard.BatchError
	if err != nil && !errors.As(err, &batch) {
		panic(err) // another kind of error is none of GetMany's
	}
	for i, key := range keys {
		o := Op{Kind: Get, Key: key, Call: called, Return: returned, Source: FromBatch}
		text, ok := values[names[i]]
		if o.Failed = !ok; ok {
			v, err := parseValue(text)
			if err != nil {
				panic(err)
			}
			o.Value = v
		}
		w.tell(o)
	}
}

func (w *worker) fetchMany(ctx context.Context, keys []string) (map[string]string, error) {
	values := map[string]string{}
	for _, key := range keys {
		values[key] = Value{At: Now(), ID: rand.Uint64()}.String()
	}
	l := w.load
	select {
	case <-time.After(l.FetchMin + rand.N(l.FetchMax-l.FetchMin+1)):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	failed := map[string]error{}
	for _, key := range keys {
		if rand.Float64() < l.FetchFails {
			failed[key] = errFetch
		}
	}
	if len(failed) > 0 {
		return values, &guard.BatchError{Errs: failed}
	}
	return values, nil
}

func (w *worker) set(key uint32) {
	o := Op{Kind: Set, Key: key, Call: Now()}
	o.Value = Value{Set: true, At: o.Call, ID: rand.Uint64()}
	err := w.guard.Set(context.Background(), keyName(key), o.Value.String())
	o.Return, o.Failed = Now(), err != nil
	w.tell(o)
}

func (w *worker) delete(key uint32) {
	o := Op{Kind: Delete, Key: key, Call: Now()}
	err := w.guard.Delete(context.Background(), keyName(key))
	o.Return, o.Failed = Now(), err != nil
	w.tell(o)
}

// deleteTag deletes the tag of a key, and tells of it for each key that has it.
func (w *worker) deleteTag(key uint32) {
	o := Op{Kind: DeleteTag, Call: Now()}
	err := w.guard.DeleteTag(context.Background(), tagName(key))
	o.Return, o.Failed = Now(), err != nil
	for o.Key = key / keysOfATag * keysOfATag; tagName(o.Key) == tagName(key); o.Key++ {
		w.tell(o)
	}
}

func (w *worker) get(key uint32) {
	ctx := context.Background()
	if rand.Float64() < w.load.Impatient {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 1+rand.N(w.load.FetchMax))
		defer cancel()
	}
	o := Op{Kind: Get, Key: key, Call: Now()}
	res, err := w.guard.Load(ctx, keyName(key), w.fetch)
	o.Return, o.Failed, o.Source = Now(), err != nil, res.Source
	if err != nil && w.load.Calm {
		fmt.Fprintf(os.Stderr, "linear: Get of %d failed after %v: %v\n", key, time.Duration(o.Return-o.Call), err)
	}
	if err == nil {
		if o.Value, err = parseValue(res.Value); err != nil {
			panic(err) // the guard made a value up, or changed one
		}
	}
	w.tell(o)
}

var errFetch = errors.New("the fetch failed")

func (w *worker) fetch(ctx context.Context, f *guard.Fill[string]) (string, error) {
	v := Value{At: Now(), ID: rand.Uint64()}
	l := w.load
	select {
	case <-time.After(l.FetchMin + rand.N(l.FetchMax-l.FetchMin+1)):
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if rand.Float64() < l.FetchFails {
		return "", errFetch
	}
	if l.TTLMax > 0 {
		f.TTL = l.TTLMin + rand.N(l.TTLMax-l.TTLMin)
	}
	return v.String(), nil
}
