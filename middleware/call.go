package middleware

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/callers"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A call is one GET on its way to an answer.
type call struct {
	m     *Middleware
	next  http.Handler
	asked *asked
	says  rfc9111.RequestControl // what the request says of caching

	ctx    context.Context // the client's; ends with errStreaming when its run may be streamed
	cancel context.CancelCauseFunc

	waited   bool // for a run that may have begun too early: see mayCollapse
	noEpoch  bool // it can't be had: nothing is stored, as no purge would reach it
	event    Event
	decision decision
	index    *index // of the page, once it is known
	marked   string // the key that may be marked, so that its requests run side by side

	mu        sync.Mutex
	w         http.ResponseWriter
	left      bool  // the client has been answered, or has gone
	answering bool  // w is in use
	run       *run  // the last that this call's fetch started
	streaming *run  // the one that the client is to read
	own       *page // what a validation brought that only this client may have
}

// A decision is what a run's header has led to, as far as its client is told.
type decision struct {
	fwd     rfc9111.Fwd
	stored  bool
	reason  string
	ttl     time.Duration
	fwdCode int // what the handler answered to a validation
}

// errStreaming ends a call's wait in the guard: its own run has come so far that
// the client can read it. The guard's fetch goes on for the others.
var errStreaming = fmt.Errorf("middleware: streaming: %w", callers.ErrServed)

// maxRounds bounds how often a call looks again as it learns what a page varies
// on.
const maxRounds = 4

// answer answers a GET through the guard.
func (c *call) answer() {
	defer c.leave()
	key, err := c.pageKey()
	if err != nil {
		c.fail(err)
		return
	}
	for range maxRounds {
		c.index = nil
		p, res, err := c.load(key, c.fetchPage(key))
		if err == nil && p != nil && p.ix != nil {
			c.index = p.ix
			p, res, err = c.loadVariant(key)
		}
		if err != nil || p == nil || res.Source == guard.Fetched {
			if r := c.toStream(); r != nil {
				c.stream(r)
				return
			}
		}
		if c.settle(key, p, res, err) {
			return
		}
	}
	c.alone("")
}

// settle answers with what the guard came to, unless that is a reason to look
// again.
func (c *call) settle(key string, p *page, res guard.Result[*page], err error) bool {
	switch {
	case errors.Is(err, errIndexGone):
		return false
	case err != nil:
		c.fail(err)
	case p == nil && c.ownPage() != nil:
		own := c.ownPage()
		c.serve(own, res, own.freshness.InitialAge, "")
	case p == nil:
		c.alone(c.marked)
	case p.status == 0:
		return false
	case len(p.vary) > 0 && p.variant != rfc9111.VariantKey(p.vary, c.asked.varying(p.vary)):
		c.alone("")
	default:
		return c.judge(key, p, res)
	}
	return true
}

// load asks the guard.
func (c *call) load(key string, fetch fetchFunc) (*page, guard.Result[*page], error) {
	c.event.key, c.marked = key, key
	if c.m.marks.has(key) {
		return nil, guard.Result[*page]{}, nil
	}
	res, err := c.m.guard.Load(c.ctx, key, fetch)
	return res.Value, res, err
}

type fetchFunc = func(context.Context, *guard.Fill[*page]) (*page, error)

// loadVariant asks for the variant of a page that varies.
func (c *call) loadVariant(key string) (*page, guard.Result[*page], error) {
	variant := rfc9111.VariantKey(c.index.names, c.asked.varying(c.index.names))
	if len(c.index.variants) >= c.m.opts.MaxVariants && !c.index.contains(variant) {
		c.marked = "" // one variant too many is for its client alone
		return nil, guard.Result[*page]{}, nil
	}
	key = variantKey(key, c.index, variant)
	return c.load(key, c.fetchVariant(key, variant))
}

// judge answers from a page if this request may have it, else has it validated.
// It answers false if the call has to look again.
func (c *call) judge(key string, p *page, res guard.Result[*page]) bool {
	age := ageOf(p, res)
	switch res.Source {
	case guard.Waited:
		if !c.mayCollapse(p) {
			return false
		}
		fallthrough
	case guard.Fetched, guard.UnguardedFetch:
		c.serve(p, res, age, "")
		return true
	}
	if res.Source == guard.Stale && p.freshness.StaleWhileRevalidate == 0 && rfc9111.MayServeOnError(p.freshness, age, c.says) {
		c.serve(p, res, age, "error") // which is the only reason why the guard gave it
		return true
	}
	switch verdict, why := rfc9111.MayServe(p.freshness, age, c.says); verdict {
	case rfc9111.Validate:
		return c.reload(key, p, res, age, why)
	case rfc9111.GatewayTimeout:
		c.notStored()
	default:
		c.serve(p, res, age, "")
	}
	return true
}

// mayCollapse reports whether the run of another request answers this one, where
// each use needs a validation: if the run began when this request was there. That
// is known of runs in this process. Of others it is known that they run one at a
// time: the second that is waited for began after the first was over.
func (c *call) mayCollapse(p *page) bool {
	verdict, _ := rfc9111.MayServe(p.freshness, p.freshness.InitialAge, c.says)
	if verdict != rfc9111.Validate || p.status >= 500 || c.waited || !p.began.IsZero() && !p.began.Before(c.event.began) {
		return true
	}
	c.waited = true
	return false
}

// reload fetches anew what this request may not have as it is, together with all
// others that want the same.
func (c *call) reload(key string, old *page, was guard.Result[*page], age time.Duration, why rfc9111.Fwd) bool {
	c.mu.Lock()
	c.decision.fwd = why
	c.mu.Unlock()
	fetch := c.fetchPage(key)
	if c.index != nil {
		variant := rfc9111.VariantKey(c.index.names, c.asked.varying(c.index.names))
		key = variantKey(key, c.index, variant)
		fetch = c.fetchVariant(key, variant)
	}
	c.event.key, c.marked = key, key
	res, err := c.m.guard.Load(c.ctx, key, fetch, guard.MaxAge(0))
	p := res.Value
	switch r := c.toStream(); {
	case r != nil:
		c.stream(r)
	case err != nil && !errors.Is(err, errIndexGone) && c.asked.Context().Err() == nil && rfc9111.MayServeOnError(old.freshness, age, c.says):
		c.serve(old, was, age, "error")
	default:
		if res.Source != guard.Fetched {
			res.Source = guard.Waited // as good as: it was not over when this request came
		}
		return c.settle(key, p, res, err)
	}
	return true
}

// ageOf is how old a response is. One that was marked stale by hand is as old as
// it takes.
func ageOf(p *page, res guard.Result[*page]) time.Duration {
	age := p.freshness.InitialAge + res.Age
	if res.Source == guard.Stale {
		age = max(age, p.freshness.Lifetime)
	}
	return age
}

// adopt takes in a run that this call's fetch has started. Without a client it is
// only for the others.
func (c *call) adopt(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left || c.streaming != nil {
		r.detached = true
		return
	}
	if c.run != nil {
		c.run.detach()
	}
	c.run = r
}

// letStream lets the client read the run, if it is there for that.
func (c *call) letStream(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == r && !c.left && !c.answering {
		c.streaming = r
		c.cancel(errStreaming)
	}
}

func (c *call) ownPage() *page {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.own
}

func (c *call) toStream() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streaming
}

// leave ends the call's part in its run, which goes on for the others.
func (c *call) leave() {
	c.mu.Lock()
	c.left = true
	r := c.run
	c.mu.Unlock()
	if r != nil {
		r.detach()
	}
	c.cancel(nil)
}

// alone runs the handler for this client only, with all that the request says. If
// that is because a key is marked, the key is given.
func (c *call) alone(key string) {
	began := time.Now()
	pw := c.pass(c.takeWriter(), rfc9111.FwdBypass, "private")
	if key != "" && pw.couldBeShared(c) {
		c.m.lift(c.asked.Context(), key, began)
	}
}

// pageKey is the guard's key for what was asked. Where the options make more than
// the target part of it, there is an epoch in between, by which all that is stored
// for the target can be forgotten.
func (c *call) pageKey() (string, error) {
	if !c.m.epochs {
		return c.asked.key(""), nil
	}
	res, err := c.m.guard.Load(c.ctx, keyEpoch+c.asked.target(), newEpoch)
	switch {
	case err != nil:
		return "", err
	case res.Value == nil || res.Value.epoch == "":
		return "", errors.New("middleware: what is stored as an epoch is none")
	case res.Source == guard.UnguardedFetch:
		c.noEpoch = true
		return c.asked.key("away"), nil // requests that are there at the same time can still share
	}
	return c.asked.key(res.Value.epoch), nil
}

func newEpoch(_ context.Context, f *guard.Fill[*page]) (*page, error) {
	f.TTL, f.StaleFor, f.Cost = epochTTL, guard.Off, 0 // no run
	return &page{epoch: randomName()}, nil
}

// epochTTL: what is stored for a target is forgotten after that at the latest.
const epochTTL = 30 * 24 * time.Hour
