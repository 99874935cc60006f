package sim

import (
	"context"
	"sync"

	"github.com/stampedeguard/stampede/guard"
)

// shared is a guard's Load without the sharing rule: whoever asks for the key
// while a call is under way gets what comes of that.
func (p *process) shared(key string) func(context.Context, string, func(context.Context, *guard.Fill[string]) (string, error)) (guard.Result[string], error) {
	return func(ctx context.Context, _ string, fetch func(context.Context, *guard.Fill[string]) (string, error)) (guard.Result[string], error) {
		p.sharingMu.Lock()
		s := p.shares[key]
		if s == nil {
			s = &share{done: make(chan struct{})}
			if p.shares == nil {
				p.shares = map[string]*share{}
			}
			p.shares[key] = s
			go func() {
				s.result, s.err = p.guard.Load(context.WithoutCancel(ctx), key, fetch)
				p.sharingMu.Lock()
				delete(p.shares, key)
				p.sharingMu.Unlock()
				close(s.done)
			}()
		}
		p.sharingMu.Unlock()
		select {
		case <-s.done:
			return s.result, s.err
		case <-ctx.Done():
			return guard.Result[string]{}, context.Cause(ctx)
		}
	}
}

type share struct {
	done   chan struct{}
	result guard.Result[string]
	err    error
}

type sharing struct {
	sharingMu sync.Mutex
	shares    map[string]*share
}
