package guard

import (
	"context"
	"sync/atomic"
)

// A frame marks a fetch in the context it runs on, so that a call of the same
// guard for the same key, made from within, is told instead of waiting for
// itself for ever.
type frame struct {
	engine *engine
	key    string
	outer  *frame
	ended  atomic.Bool // the fetch returned; its context may live on
}

type frameKey struct{}

func enter(ctx context.Context, e *engine, key string) (context.Context, *frame) {
	outer, _ := ctx.Value(frameKey{}).(*frame)
	f := &frame{engine: e, key: key, outer: outer}
	return context.WithValue(ctx, frameKey{}, f), f
}

// within reports whether ctx belongs to a fetch of key.
func within(ctx context.Context, e *engine, key string) bool {
	f, _ := ctx.Value(frameKey{}).(*frame)
	for ; f != nil; f = f.outer {
		if f.engine == e && f.key == key && !f.ended.Load() {
			return true
		}
	}
	return false
}
