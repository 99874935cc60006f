package chaos

import (
	"context"
	"errors"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// getMany is one caller of LoadMany. To the checks it is a caller of each key.
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
	results, err := c.guards[k.name].LoadMany(ctx, keys, func(ctx context.Context, fills []*guard.Fill[string]) (map[string]string, error) {
		fs := make([]*Fetch, len(fills))
		for i, f := range fills {
			fs[i] = c.begin(f.Key, f.IdempotencyKey)
		}
		return c.fetchMany(ctx, k, fs, callers, took)
	})
	end := now()
	c.leave(gs...)
	part, _ := errors.AsType[*guard.BatchError](err)
	for _, g := range gs {
		g.End = end
		res, ok := results[g.Key]
		switch {
		case ok:
			g.Source = res.Source.String()
			g.given(res.Value)
		case part != nil && part.Errs[g.Key] != nil:
			g.Err = c.errorKind(part.Errs[g.Key])
		default: // no fetch says that a key doesn't exist
			g.Damage = "neither a value nor an error of this key"
		}
		c.write(&report{Get: g})
	}
}

// fetchMany is the fetch function of the guard, for keys of one kind. To the checks it is a
// fetch of each.
func (c *child) fetchMany(ctx context.Context, k *kind, fs []*Fetch, callers map[string]uint64, took time.Duration) (_ map[string]string, err error) {
	returned := false
	var part *guard.BatchError
	defer func() {
		for _, f := range fs {
			f.End = now()
			switch {
			case !returned:
				f.Err = "panic"
			case part == nil:
				f.Err = c.fetchErrorKind(err)
			default:
				f.Err = c.errorKind(part.Errs[f.Key])
			}
			c.write(&report{End: f})
		}
	}()
	if err := k.take(ctx, took); err != nil {
		returned = true
		return nil, err
	}
	values := make(map[string]string, len(fs))
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
