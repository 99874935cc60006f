package middleware

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A Middleware is a shared cache in front of handlers. It is safe for concurrent
// use. Make one, and wrap as many handlers as share its options: what tells their
// responses apart is the request.
type Middleware struct {
	opts    Options
	guard   *guard.Guard[*page]
	rules   []matcher
	usual   terms
	headers headerRules
	params  map[string]bool // nil: all
	ownTags int             // of the guard's policy
	epochs  bool            // more than the target makes a key

	aloneSlots chan struct{}
	marks      *marks
	counters   counters

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	runs   sync.WaitGroup
}

// New returns a middleware on the store. All that is wrong with the options is
// returned, joined. Close it before the store.
func New(store cache.Store, opts Options) (*Middleware, error) {
	opts = opts.withDefaults()
	errs := []error{opts.validate()}
	policy := guard.Policy{
		TTL: indexTTL, Stale: time.Second,
		FetchTimeout: opts.FetchTimeout, WaitTimeout: opts.WaitTimeout, WhenUnavailable: opts.WhenUnavailable,
		Near: opts.Near,
	}
	if opts.Policy != nil {
		opts.Policy(&policy)
	}
	policy.TTL, policy.Stale, policy.StaleIfError = indexTTL, time.Second, 0
	policy.MaxBytes = 2*opts.MaxBody + 1<<20 // header, and the body in gzip
	policy.Codec = pageCodec{}
	policy.Errors = maps.Clone(policy.Errors)
	if policy.Errors == nil {
		policy.Errors = map[string]error{}
	}
	policy.Errors["middleware.index_gone"] = errIndexGone
	g, err := guard.New[*page](store, opts.Name, policy)
	if err := errors.Join(append(errs, err)...); err != nil {
		if g != nil {
			_ = g.Close()
		}
		return nil, err
	}
	m := &Middleware{
		opts: opts, guard: g, rules: matchersOf(opts.Rules), usual: terms{ttl: opts.TTL, stale: opts.Stale},
		headers: headerRulesOf(&opts), aloneSlots: make(chan struct{}, opts.MaxAlone),
		marks: newMarks(), ownTags: len(policy.Tags),
		epochs: len(opts.Headers) > 0 || len(opts.Cookies) > 0 || opts.Key != nil,
	}
	if opts.Query != nil {
		m.params = map[string]bool{}
		for _, name := range opts.Query {
			m.params[name] = true
		}
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m, nil
}

// Close cancels the runs that are under way and gives back their leases, so that
// other processes go on at once. Requests that come later are answered with 503.
// It doesn't wait for handlers to return: shut the server down first.
func (m *Middleware) Close() error {
	err := m.guard.Close()
	m.cancel()
	return err
}

// background starts what Close need not wait for: it ends with the guard.
func (m *Middleware) background(f func()) { m.runs.Go(f) }

// Wrap puts the middleware in front of a handler.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	t := m.termsFor(r)
	c := &call{m: m, next: next, w: w, asked: &asked{Request: r, m: m, terms: t}}
	c.event = Event{Request: r, began: time.Now()}
	defer c.report()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		c.otherMethod(w)
		return
	}
	if t.bypass || bypasses(r) {
		c.pass(w, rfc9111.FwdBypass, "")
		return
	}
	c.asked = m.asked(r, t)
	c.says = m.says(r.Header)
	alone := r.Method == http.MethodHead || c.says.NoStore || hasPrecondition(c.asked.Header)
	if alone || c.says.OnlyIfCached || c.says.MaxStale.Set {
		switch {
		case c.lookUp():
			return
		case c.says.OnlyIfCached:
			c.notStored()
			return
		case alone:
			c.pass(w, rfc9111.FwdURIMiss, "")
			return
		}
	}
	c.ctx, c.cancel = context.WithCancelCause(r.Context())
	c.answer()
}

// says is what a request asks of caches, as far as it has a say.
func (m *Middleware) says(h http.Header) rfc9111.RequestControl {
	if len(h["Cache-Control"]) == 0 && len(h["Pragma"]) == 0 {
		return rfc9111.RequestControl{}
	}
	c := rfc9111.ParseRequest(h)
	if m.opts.IgnoreRequestDirectives {
		return rfc9111.RequestControl{NoStore: c.NoStore}
	}
	return c
}
