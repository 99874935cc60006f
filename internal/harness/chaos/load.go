package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// maxOut bounds the callers that are out at once in a process.
const maxOut = 3000

// load starts callers and changes, until unload.
func (c *child) load() {
	ctx, cancel := context.WithCancel(context.Background())
	c.loading = cancel
	rng := rand.New(rand.NewPCG(c.cfg.Seed, uint64(c.cfg.Proc)))
	changes := rand.New(rand.NewPCG(c.cfg.Seed+1, uint64(c.cfg.Proc)))
	c.work.Go(func() { c.callForever(ctx, rng) })
	c.work.Go(func() { c.changeForever(ctx, changes) })
}

// unload ends the load and waits for the callers that are out.
func (c *child) unload() {
	if c.loading != nil {
		c.loading()
	}
	c.work.Wait()
}

// pauseFor sleeps for about d and reports whether to go on.
func pauseFor(ctx context.Context, rng *rand.Rand, d time.Duration) bool {
	timer := time.NewTimer(time.Duration(rng.ExpFloat64() * float64(d)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *child) callForever(ctx context.Context, rng *rand.Rand) {
	for n := 1; pauseFor(ctx, rng, time.Duration(float64(n)/c.cfg.Rate*1e9)); {
		k := pick(rng)
		if !k.single && rng.IntN(6) == 0 {
			keys := k.someKeys(rng)
			if n = len(keys); c.under()+n <= maxOut {
				timeout, took := k.timeout(rng), k.takes(rng)
				c.work.Go(func() { c.getMany(k, keys, timeout, took) })
			}
			continue
		}
		key := k.key(rng)
		n = 1 + rng.IntN(k.burst)
		for range n {
			if c.under() >= maxOut {
				break
			}
			timeout, took := k.timeout(rng), k.takes(rng)
			c.work.Go(func() { c.get(k, key, timeout, took) })
		}
	}
}

// timeout draws how long a caller's context lasts.
func (k *kind) timeout(rng *rand.Rand) time.Duration {
	if k.deaf || rng.IntN(10) == 0 {
		return 30*time.Millisecond + upTo(rng, 270*time.Millisecond)
	}
	return patient
}

// takes draws how long a fetch takes.
func (k *kind) takes(rng *rand.Rand) time.Duration { return k.fetch/2 + upTo(rng, k.fetch/2) }

// take lets a fetch's time pass. Errors: the cause of its context's end, to which
// some kinds are deaf.
func (k *kind) take(ctx context.Context, took time.Duration) error {
	timer := time.NewTimer(took)
	defer timer.Stop()
	if k.deaf {
		ctx = context.Background()
	}
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *child) under() int {
	c.getsMu.Lock()
	defer c.getsMu.Unlock()
	return len(c.gets)
}

// get is one caller.
func (c *child) get(k *kind, key string, timeout, took time.Duration) {
	g := &Get{Key: key, Caller: c.callers.Add(1), Start: now()}
	g.Deadline = g.Start.Add(timeout)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c.enter(g)
	res, err := c.guards[k.name].Load(ctx, key, func(ctx context.Context, f *guard.Fill[string]) (string, error) {
		return c.fetch(ctx, k, key, g.Caller, took, f)
	})
	end := now()
	c.leave(g)

	g.End, g.Err, g.Source = end, c.errorKind(err), ""
	if err == nil {
		g.Source = res.Source.String()
		g.given(res.Value)
	}
	c.write(&report{Get: g})
}

// enter and leave keep account of the calls under way.
func (c *child) enter(gs ...*Get) {
	c.getsMu.Lock()
	defer c.getsMu.Unlock()
	for _, g := range gs {
		c.gets[g.Caller] = g
	}
}

func (c *child) leave(gs ...*Get) {
	c.getsMu.Lock()
	defer c.getsMu.Unlock()
	for _, g := range gs {
		delete(c.gets, g.Caller)
	}
}

// given notes where a value comes from.
func (g *Get) given(value string) {
	var damage error
	if g.Origin, damage = decodeValue(value); damage != nil {
		g.Damage = damage.Error()
	}
}

// fetch is the fetch function of the guard.
func (c *child) fetch(ctx context.Context, k *kind, key string, caller uint64, took time.Duration, fill *guard.Fill[string]) (value string, err error) {
	f := c.begin(key, fill.IdempotencyKey)
	returned := false
	defer func() {
		f.End, f.Err = now(), c.fetchErrorKind(err)
		if !returned {
			f.Err = "panic"
		}
		c.write(&report{End: f})
	}()
	fill.Private = k.name == kindPrivate
	if err := k.take(ctx, took); err != nil {
		returned = true
		return "", err
	}
	if k.name == kindFailing {
		err = fail(key)
		returned = true
		return "", err
	}
	returned = true
	return encodeValue(&Origin{Key: key, Proc: c.cfg.Proc, Seq: f.Seq, At: f.Start, Caller: caller}, k.size), nil
}

// begin reports a fetch that starts.
func (c *child) begin(key, token string) *Fetch {
	f := &Fetch{Key: key, Seq: c.seq.Add(1), Start: now(), Token: token}
	f.Leased, f.TakenOver = c.lease(token)
	c.write(&report{Begin: f})
	return f
}

// changeForever invalidates keys, and checks the effect at once: in this
// process, as the others are busy with the same keys anyway.
func (c *child) changeForever(ctx context.Context, rng *rand.Rand) {
	var changed, raced []*kind
	for i := range kinds {
		if k := &kinds[i]; k.raced {
			raced = append(raced, k)
		} else if k.changed {
			changed = append(changed, k)
		}
	}
	for n := 0; pauseFor(ctx, rng, time.Duration(10/c.cfg.Rate*1e9)); n++ {
		if n%4 == 0 {
			k := changed[rng.IntN(len(changed))]
			keys := k.oneOrSome(rng)
			op, what := k.change(rng, keys[0])
			c.work.Go(func() { c.changeAndGet(k, keys, op, what) })
			continue
		}
		k := raced[rng.IntN(len(raced))]
		keys, after, took := k.oneOrSome(rng), upTo(rng, k.fetch*3/2), k.takes(rng)
		op, what := k.change(rng, keys[0])
		c.work.Go(func() { c.ask(k, keys, patient, took) })
		c.work.Go(func() {
			time.Sleep(after)
			c.changeAndGet(k, keys, op, what)
		})
	}
}

// oneOrSome draws the keys of a Get or, half as often, of a LoadMany.
func (k *kind) oneOrSome(rng *rand.Rand) []string {
	if rng.IntN(3) == 0 {
		return k.someKeys(rng)
	}
	return []string{k.key(rng)}
}

// ask is a caller of Load or, for several keys, of LoadMany.
func (c *child) ask(k *kind, keys []string, timeout, took time.Duration) {
	if len(keys) == 1 {
		c.get(k, keys[0], timeout, took)
	} else {
		c.getMany(k, keys, timeout, took)
	}
}

// change draws a change of a key, or of one of its tags.
func (k *kind) change(rng *rand.Rand, key string) (op, what string) {
	if tags := tagsOf(key); len(tags) > 0 && rng.IntN(2) == 0 {
		return opDeleteTag, tags[rng.IntN(len(tags))]
	}
	return drawOp(rng), key
}

func drawOp(rng *rand.Rand) string {
	switch n := rng.IntN(100); {
	case n < 50:
		return opDelete
	case n < 85:
		return opSet
	}
	return opExpire
}

// changeAndGet changes a key or a tag, and asks for the keys.
func (c *child) changeAndGet(k *kind, keys []string, op, what string) {
	if c.change(k, what, op) {
		c.ask(k, keys, patient, k.fetch/2)
	}
}

// change reports whether it was acknowledged.
func (c *child) change(k *kind, key, op string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	ch := &Change{Op: op, Key: key, Seq: c.seq.Add(1), Start: now()}
	c.write(&report{Try: ch})
	g := c.guards[k.name]
	var err error
	switch op {
	case opDelete:
		err = g.Delete(ctx, key)
	case opExpire:
		err = g.Expire(ctx, key)
	case opDeleteTag:
		err = g.DeleteTag(ctx, key)
	case opSet:
		err = g.Set(ctx, key, encodeValue(&Origin{Key: key, Proc: c.cfg.Proc, Seq: ch.Seq, At: ch.Start, Set: true}, k.size))
	}
	ch.End, ch.Err = now(), c.errorKind(err)
	c.write(&report{Change: ch})
	return err == nil
}

// errorKind sorts errors. The expected answers of a failing fetch have kinds of
// their own.
func (c *child) errorKind(err error) string {
	if err == nil {
		return ""
	}
	var remote *guard.RemoteError
	var panicked *guard.PanicError
	switch {
	case errors.Is(err, errBoom):
		return "fetch"
	case errors.As(err, &panicked), errors.As(err, &remote) && remote.Panicked:
		return "panic"
	}
	for _, known := range errorKinds {
		if errors.Is(err, known.err) {
			return known.kind
		}
	}
	c.write(&report{Odd: err.Error()})
	return "other"
}

// unwantedText is in the cause of the end of a fetch that no caller can use.
const unwantedText = "no caller waits for the fetch"

// fetchErrorKind is errorKind for a fetch, which ends with its lease if no caller can use
// the value any more. A caller must never be told that.
func (c *child) fetchErrorKind(err error) string {
	if err != nil && strings.Contains(err.Error(), unwantedText) {
		return "unwanted"
	}
	return c.errorKind(err)
}

var errorKinds = []struct {
	err  error
	kind string
}{
	{guard.ErrQueued, errQueued},
	{guard.ErrQuarantined, "quarantined"},
	{guard.ErrWaitTimeout, "wait_timeout"},
	{guard.ErrFetchTimeout, "fetch_timeout"},
	{guard.ErrClosed, "closed"},
	{guard.ErrUnavailable, "unavailable"},
	{context.DeadlineExceeded, "deadline"},
	{context.Canceled, "canceled"},
}
