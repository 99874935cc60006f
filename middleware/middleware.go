package middleware

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
)

// A Middleware is a shared cache in front of handlers. It is safe for concurrent use. One
// can wrap many handlers that share its options: the request tells their responses apart.
type Middleware struct {
	opts         Options
	site         *site
	tags         tagger
	pages        *pages
	terms        httpcache.Terms
	softTimeout  time.Duration // of the policy
	fetchTimeout time.Duration // of a run; the guard's comes later
	waitTimeout  time.Duration // of the policy
	aloneSlots   chan struct{}
	counters     counters

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
}

// New returns a middleware on the store. It returns all mistakes in the options, joined.
// Close the middleware before the store.
func New(store cache.Store, opts Options) (*Middleware, error) {
	opts = opts.withDefaults()
	errs := []error{opts.validate()}
	policy := guard.Policy{
		TTL: indexTTL, Stale: time.Second,
		FetchTimeout: opts.FetchTimeout, WaitTimeout: opts.WaitTimeout, FailClosed: opts.FailClosed,
		MaxUnguarded: maxUnguarded, MaxUnguardedWait: min(maxUnguardedWait, opts.WaitTimeout), Near: opts.Near, Observer: opts.Observer,
	}
	if opts.Policy != nil {
		opts.Policy(&policy)
	}
	policy.TTL, policy.Stale, policy.StaleIfError = indexTTL, time.Second, 0
	policy.MaxBytes = 2*opts.MaxBody + 1<<20 // header, and the body in gzip
	policy.Codec = httpcache.Codec{}
	policy.Errors = httpcache.Errors(policy.Errors)
	fetchTimeout := cmp.Or(policy.FetchTimeout, opts.FetchTimeout)
	policy.FetchTimeout = fetchTimeout + timeoutGrace
	g, err := guard.New[*httpcache.Page](store, opts.Name, policy)
	if err := errors.Join(append(errs, err)...); err != nil {
		if g != nil {
			_ = g.Close()
		}
		return nil, err
	}
	m := &Middleware{
		opts: opts, site: newSite(&opts), tags: tagger{opts.TagHeaders, opts.Tags, len(policy.Tags)},
		pages: &pages{g, httpcache.NewNotes(), newKept(opts.MaxPages), opts.MaxVariants + maxRounds}, terms: httpcache.Terms{Keep: opts.KeepFor},
		softTimeout: policy.SoftTimeout, fetchTimeout: fetchTimeout, waitTimeout: cmp.Or(policy.WaitTimeout, opts.WaitTimeout),
		aloneSlots: make(chan struct{}, opts.MaxAlone),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m, nil
}

// maxUnguarded is the default of guard.Policy.MaxUnguarded here: a few slow pages must not
// hold up all others while the store is away.
const maxUnguarded = 256

// maxUnguardedWait is the default of guard.Policy.MaxUnguardedWait here: a client had rather
// try again than wait for slow pages of other clients.
const maxUnguardedWait = 2 * time.Second

// timeoutGrace is the time in which a run ends its turn by itself after FetchTimeout.
const timeoutGrace = time.Second

// Close cancels the runs that are under way and releases their leases, so that other
// processes go on at once. It returns when the leases are released, and does not wait for
// handlers to return: shut the server down first. Later requests are answered with 503.
func (m *Middleware) Close() error {
	err := m.pages.guard.Close()
	m.cancel()
	return err
}

// Stats returns a snapshot.
func (m *Middleware) Stats() Stats {
	c := &m.counters
	return Stats{
		Requests: c.requests.Load(), Hits: c.hits.Load(), Stale: c.stale.Load(), Forwarded: c.forwarded.Load(),
		Collapsed: c.collapsed.Load(), Bypassed: c.bypassed.Load(), Stored: c.stored.Load(), Failed: c.failed.Load(),
		Guard: m.pages.guard.Stats(),
	}
}
