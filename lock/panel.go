package lock

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// A panel is the backends of a Locker, which vote.
type panel struct {
	opts     *Options
	backends []Backend
	names    []string // of the backends
	quorum   int      // votes that decide
}

func newPanel(opts *Options, backends []Backend) panel {
	p := panel{opts: opts, backends: backends, quorum: len(backends)/2 + 1}
	for i, b := range backends {
		name := fmt.Sprint(i)
		if s, ok := b.(fmt.Stringer); ok {
			name += " (" + s.String() + ")"
		}
		p.names = append(p.names, name)
	}
	return p
}

// bounded is a context for one call of a backend. A single store bounds its calls by itself.
func (p *panel) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := p.backends[0].(on); ok && len(p.backends) == 1 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, p.opts.voteTimeout(len(p.backends)))
}

// each asks all backends at once, and waits for all of them.
func (p *panel) each(ctx context.Context, ask func(ctx context.Context, b Backend, i int) (bool, error)) (votes []Vote, yes int) {
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	votes = make([]Vote, len(p.backends))
	one := func(i int) {
		ok, err := ask(ctx, p.backends[i], i)
		votes[i] = Vote{Backend: p.names[i], State: VoteNo}
		switch {
		case err != nil:
			votes[i].State, votes[i].Err = VoteError, err
		case ok:
			votes[i].State = VoteYes
		}
	}
	if len(p.backends) == 1 {
		one(0)
	} else {
		var wg sync.WaitGroup
		for i := range p.backends {
			wg.Go(func() { one(i) })
		}
		wg.Wait()
	}
	return votes, count(votes, VoteYes)
}

// release gives a lock back on all backends. It reports whether a majority had it, and
// returns an error if there was no majority for either.
func (p *panel) release(ctx context.Context, h Hold) (bool, error) {
	if len(p.backends) == 1 {
		ctx, cancel := p.bounded(ctx)
		defer cancel()
		return p.backends[0].Release(ctx, h)
	}
	votes, yes := p.each(ctx, func(ctx context.Context, b Backend, _ int) (bool, error) { return b.Release(ctx, h) })
	switch {
	case yes >= p.quorum:
		return true, nil
	case p.refused(votes):
		return false, nil
	}
	return false, p.noQuorum(h.Name, votes)
}

// extend renews a lock on all backends. It does not wait for one that outlives its context, as
// a store does that waits for RedisTimeout: the majority's lock would be lost meanwhile.
func (p *panel) extend(ctx context.Context, h Hold) (votes []Vote, yes int) {
	return p.each(ctx, func(ctx context.Context, b Backend, _ int) (bool, error) {
		if len(p.backends) == 1 {
			return b.Extend(ctx, h)
		}
		answered := make(chan struct{})
		var extended bool
		var failed error
		go func() { // ends with the backend's call
			defer close(answered)
			extended, failed = b.Extend(ctx, h)
		}()
		select {
		case <-answered:
			return extended, failed
		case <-ctx.Done():
			return false, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
		}
	})
}

// releaseAt gives a lock back on one backend, once.
func (p *panel) releaseAt(i int, h Hold) {
	ctx, cancel := p.bounded(context.Background())
	defer cancel()
	_, _ = p.backends[i].Release(ctx, h)
}

// inspect tells of the holders that a majority names.
func (p *panel) inspect(ctx context.Context, name string) (all State, err error) {
	states := make([]State, len(p.backends))
	votes, yes := p.each(ctx, func(ctx context.Context, b Backend, i int) (bool, error) {
		var err error
		states[i], err = b.Inspect(ctx, name, p.opts.Holders)
		return err == nil, err
	})
	if yes < p.quorum {
		return State{}, p.noQuorum(name, votes)
	}
	named := map[ID]int{}
	for _, s := range states {
		all.Fence = max(all.Fence, s.Fence)
		for _, h := range s.Holders {
			if named[h.ID]++; named[h.ID] == p.quorum {
				all.Holders = append(all.Holders, h)
			}
		}
	}
	return all, nil
}

// refused reports whether the votes against are so many that the others are no majority.
func (p *panel) refused(votes []Vote) bool { return count(votes, VoteNo) > len(votes)-p.quorum }

func count(votes []Vote, state VoteState) (n int) {
	for i := range votes {
		if votes[i].State == state {
			n++
		}
	}
	return n
}

// noQuorum is the error of a call that no majority has answered. A single backend's own
// error says more.
func (p *panel) noQuorum(name string, votes []Vote) error {
	if len(votes) == 1 && votes[0].Err != nil {
		return votes[0].Err
	}
	return &QuorumError{Name: name, Need: p.quorum, Votes: slices.Clone(votes)}
}
