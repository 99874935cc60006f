package guard

import (
	"context"
	"fmt"
	"sync/atomic"
)

// A frame marks a fetch in the context it runs on, so that a call of the same
// guard for the same key, made from within, is told instead of waiting for
// itself for ever.
type frame struct {
	engine *engine
	key    string
	keys   *fetchKeys // of the fetch, where it is one of several parts
	outer  *frame
	ended  atomic.Bool // the fetch returned; its context may live on
}

type frameKey struct{}

// framed is a context that a frame marks.
type framed struct {
	context.Context
	frame
}

// Value implements [context.Context].
func (c *framed) Value(key any) any {
	if key == (frameKey{}) {
		return &c.frame
	}
	return c.Context.Value(key)
}

// enter marks the context of a fetch: of one key, or of one part of several.
func enter(ctx context.Context, e *engine, key string, keys *fetchKeys) (context.Context, *frame) {
	c := &framed{Context: ctx, frame: frame{engine: e, key: key, keys: keys}}
	c.outer, _ = ctx.Value(frameKey{}).(*frame)
	return c, &c.frame
}

// holds reports whether a call for key from within would wait for the fetch
// itself.
func (f *frame) holds(key string) bool {
	return f.key == key || f.keys.holds(key)
}

// fetchKeys are the keys of a fetch that is one of several, which run one after
// the other: to wait for a key of a later one is to wait for oneself, too.
type fetchKeys struct {
	turn map[string]int // of each key
	now  int
}

func (k *fetchKeys) holds(key string) bool {
	turn, ok := k.turn[key]
	return ok && turn >= k.now
}

// within reports whether ctx belongs to a fetch of key.
func within(ctx context.Context, e *engine, key string) bool {
	f, _ := ctx.Value(frameKey{}).(*frame)
	for ; f != nil; f = f.outer {
		if f.engine == e && f.holds(key) && !f.ended.Load() {
			return true
		}
	}
	return false
}

func (e *engine) reentrant(key string) *outcome {
	return &outcome{err: fmt.Errorf("%w: %s", ErrReentrant, e.events.quote(key)), own: true}
}
