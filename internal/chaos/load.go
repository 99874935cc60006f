package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
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
		key := k.key(rng)
		n = 1 + rng.IntN(k.burst)
		for range n {
			if c.under() >= maxOut {
				break
			}
			timeout := patient
			if k.deaf || rng.IntN(10) == 0 {
				timeout = 30*time.Millisecond + upTo(rng, 270*time.Millisecond)
			}
			took := k.fetch/2 + upTo(rng, k.fetch/2)
			c.work.Go(func() { c.get(k, key, timeout, took) })
		}
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
	c.getsMu.Lock()
	c.gets[g.Caller] = g
	c.getsMu.Unlock()

	res, err := c.guards[k.name].Load(ctx, key, func(ctx context.Context, f *guard.Fill[string]) (string, error) {
		return c.fetch(ctx, k, key, g.Caller, took, f)
	})
	end := now()
	c.getsMu.Lock()
	delete(c.gets, g.Caller)
	c.getsMu.Unlock()

	g.End, g.Err, g.Source = end, c.errorKind(err), ""
	if err == nil {
		g.Source = res.Source.String()
		var damage error
		if g.Origin, damage = decodeValue(res.Value); damage != nil {
			g.Damage = damage.Error()
		}
	}
	c.write(&report{Get: g})
}

// fetch is what the guard calls.
func (c *child) fetch(ctx context.Context, k *kind, key string, caller uint64, took time.Duration, fill *guard.Fill[string]) (value string, err error) {
	f := &Fetch{Key: key, Seq: c.seq.Add(1), Start: now(), Token: fill.IdempotencyKey}
	f.Leased, f.TakenOver = c.lease(f.Token)
	c.write(&report{Begin: f})
	returned := false
	defer func() {
		f.End, f.Err = now(), c.errorKind(err)
		if !returned {
			f.Err = "panic"
		}
		c.write(&report{End: f})
	}()
	fill.Private = k.name == kindPrivate
	timer := time.NewTimer(took)
	defer timer.Stop()
	if k.deaf {
		ctx = context.Background()
	}
	select {
	case <-timer.C:
	case <-ctx.Done():
		returned = true
		return "", context.Cause(ctx)
	}
	if k.name == kindFailing {
		err = fail(key)
		returned = true
		return "", err
	}
	returned = true
	return encodeValue(&Origin{Key: key, Proc: c.cfg.Proc, Seq: f.Seq, At: f.Start, Caller: caller}, k.size), nil
}

// changeForever invalidates keys, and looks at once what that did: in this
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
			key, op := k.key(rng), drawOp(rng)
			c.work.Go(func() { c.changeAndGet(k, key, op) })
			continue
		}
		k := raced[rng.IntN(len(raced))]
		key, op, after := k.key(rng), drawOp(rng), upTo(rng, k.fetch*3/2)
		took := k.fetch/2 + upTo(rng, k.fetch/2)
		c.work.Go(func() { c.get(k, key, patient, took) })
		c.work.Go(func() {
			time.Sleep(after)
			c.changeAndGet(k, key, op)
		})
	}
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

func (c *child) changeAndGet(k *kind, key, op string) {
	if c.change(k, key, op) {
		c.get(k, key, patient, k.fetch/2)
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
	case opSet:
		err = g.Set(ctx, key, encodeValue(&Origin{Key: key, Proc: c.cfg.Proc, Seq: ch.Seq, At: ch.Start, Set: true}, k.size))
	}
	ch.End, ch.Err = now(), c.errorKind(err)
	c.write(&report{Change: ch})
	return err == nil
}

// errorKind sorts errors. What a failing fetch is expected to answer has kinds
// of its own.
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

var errorKinds = []struct {
	err  error
	kind string
}{
	{guard.ErrQuarantined, "quarantined"},
	{guard.ErrWaitTimeout, "wait_timeout"},
	{guard.ErrFetchTimeout, "fetch_timeout"},
	{guard.ErrClosed, "closed"},
	{guard.ErrUnavailable, "unavailable"},
	{context.DeadlineExceeded, "deadline"},
	{context.Canceled, "canceled"},
}
