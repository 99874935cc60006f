package chaos

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// getMany is one caller of GetMany. To the checks it is a caller of each key.
func (c *child) getMany(k *kind, keys []string, timeout, took time.Duration) {
	start := now()
	gs := make([]*Get, len(keys))
	callers := make(map[string]uint64, len(keys))
	for i, key := range keys {
		gs[i] = &Get{Key: key, Caller: c.callers.Add(1), Start: start, Deadline: start.Add(timeout), Many: true}
		callers[key] = gs[i].Caller
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c.enter(gs...)
	values, err := c.guards[k.name].GetMany(ctx, keys, func(ctx context.Context, keys []string) (map[string]string, error) {
		return c.fetchMany(ctx, k, keys, callers, took)
	})
	end := now()
	c.leave(gs...)
	part, _ := errors.AsType[*guard.BatchError](err)
	for _, g := range gs {
		g.End = end
		value, ok := values[g.Key]
		switch {
		case ok:
			g.given(value)
		case part != nil && part.Errs[g.Key] != nil:
			g.Err = c.errorKind(part.Errs[g.Key])
		default: // no fetch says that a key doesn't exist
			g.Damage = "neither a value nor an error of this key"
		}
		c.write(&report{Get: g})
	}
}

// fetchMany is what the guard calls, for keys of one kind. To the checks it is a
// fetch of each.
func (c *child) fetchMany(ctx context.Context, k *kind, keys []string, callers map[string]uint64, took time.Duration) (_ map[string]string, err error) {
	fs := make([]*Fetch, len(keys))
	for i, key := range keys {
		fs[i] = c.begin(key, c.startedFor(key))
	}
	returned := false
	var part *guard.BatchError
	defer func() {
		for _, f := range fs {
			f.End = now()
			switch {
			case !returned:
				f.Err = "panic"
			case part == nil:
				f.Err = c.errorKind(err)
			default:
				f.Err = c.errorKind(part.Errs[f.Key])
			}
			c.write(&report{End: f})
		}
	}()
	timer := time.NewTimer(took)
	defer timer.Stop()
	if k.deaf {
		ctx = context.Background()
	}
	select {
	case <-timer.C:
	case <-ctx.Done():
		returned = true
		return nil, context.Cause(ctx)
	}
	values := make(map[string]string, len(keys))
	errs := map[string]error{}
	for _, f := range fs {
		if k.name == kindFailing {
			errs[f.Key] = fail(f.Key)
			continue
		}
		o := &Origin{Key: f.Key, Proc: c.cfg.Proc, Seq: f.Seq, At: f.Start, Caller: callers[f.Key]}
		values[f.Key] = encodeValue(o, k.size)
	}
	returned = true
	if len(errs) > 0 {
		part = &guard.BatchError{Errs: errs}
		return values, part
	}
	return values, nil
}

// A fetch of many isn't told under which leases it runs. The guard's events are,
// just before.

// starting notes a fetch that the guard is about to start.
func (c *child) starting(key string, t cache.Token) {
	token := "" // none
	if !t.IsZero() {
		token = t.String()
	}
	c.leasesMu.Lock()
	defer c.leasesMu.Unlock()
	c.starts[key] = append(c.starts[key], token)
}

// startedFor is the token of the fetch of the key that was to start first; empty:
// it has no lease.
func (c *child) startedFor(key string) string {
	c.leasesMu.Lock()
	defer c.leasesMu.Unlock()
	all := c.starts[key]
	if len(all) == 0 {
		return ""
	}
	c.drop(key, 0)
	return all[0]
}

// startedWith takes out a fetch that is told its token.
func (c *child) startedWith(key, token string, leased bool) {
	if !leased {
		token = ""
	}
	c.leasesMu.Lock()
	defer c.leasesMu.Unlock()
	if i := slices.Index(c.starts[key], token); i >= 0 {
		c.drop(key, i)
	}
}

func (c *child) drop(key string, i int) {
	if left := slices.Concat(c.starts[key][:i], c.starts[key][i+1:]); len(left) > 0 {
		c.starts[key] = left
	} else {
		delete(c.starts, key)
	}
}
