package chaos

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
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
	granted := &grants{tokens: map[string]string{}}
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), grantsKey{}, granted), timeout)
	defer cancel()
	c.enter(gs...)
	values, err := c.guards[k.name].GetMany(ctx, keys, func(ctx context.Context, keys []string) (map[string]string, error) {
		fs := make([]*Fetch, len(keys))
		for i, key := range keys {
			fs[i] = c.begin(key, granted.take(k.name+":"+key))
		}
		return c.fetchMany(ctx, k, fs, callers, took)
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

// grants are the tokens of the leases that one call of GetMany was last granted,
// by the store's name of the key: its fetch isn't told under which it runs.
type grants struct {
	mu     sync.Mutex
	tokens map[string]string
}

type grantsKey struct{}

func (g *grants) note(name string, a store.Answer) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.tokens, name)
	if a.Verdict == store.Granted {
		g.tokens[name] = a.Lease.Token.String()
	}
}

// take is the token under which a fetch starts now, empty if it has no lease.
func (g *grants) take(name string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tokens[name]
	delete(g.tokens, name)
	return t
}

// A noting store tells the calls of GetMany which leases they were granted: the context
// of a guard's work for a call has that call's values.
type noting struct{ store.Store }

// Unwrap makes it a cache.Store.
func (s noting) Unwrap() store.Store { return s }

// Acquire implements [store.Store].
func (s noting) Acquire(ctx context.Context, requests []store.Request) []store.Answer {
	all := s.Store.Acquire(ctx, requests)
	g, _ := ctx.Value(grantsKey{}).(*grants)
	for i, a := range all {
		g.note(requests[i].Key, a)
	}
	return all
}
