package httpcache

import "context"

// A Run describes a run of a handler, in the run's context.
type Run struct {
	Shared     bool // it was given only the common parts of the requests for its page
	Background bool // it refreshes a page that is served meanwhile
}

type runKey struct{}

// WithRun returns the context of a run.
func WithRun(ctx context.Context, r *Run) context.Context { return context.WithValue(ctx, runKey{}, r) }

// RunOf returns the innermost run that a context belongs to; nil: none.
func RunOf(ctx context.Context) *Run {
	r, _ := ctx.Value(runKey{}).(*Run)
	return r
}
