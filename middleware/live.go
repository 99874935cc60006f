package middleware

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// share lets the requests of this process that wait for the run read it along. A response
// that must be validated before each use is for requests that came before the run: they
// wait for its end. So do requests for a response that will not be stored.
func (r *run) share() {
	if r.client == nil || r.passing || needsValidation(&r.d) {
		return
	}
	p := r.head()
	if r.expected >= 0 {
		p.Length = strconv.FormatInt(r.expected, 10)
	}
	p.Live = &httpcache.Live{Body: r.rec, Since: time.Now(), Leave: r.leave, Over: make(chan struct{})}
	r.mu.Lock()
	if !r.private {
		r.live = p.Live
	}
	r.mu.Unlock()
	if r.live == nil {
		return
	}
	r.turn.Preview(p, r.tags...)
}

// endLive tells the requests that need the whole page that it will not come. It is called
// after the end of the turn: until then another look finds the same page.
func (r *run) endLive(err error) {
	r.mu.Lock()
	live := r.live
	r.mu.Unlock()
	if live != nil {
		live.End(nil, err)
	}
}

// readLive answers from a page that is still being written. It returns false if the call
// has to look again.
func (c *call) readLive(p *httpcache.Page, res guard.Result[*httpcache.Page]) bool {
	collapses := c.mayCollapse(p, liveAge(p))
	if collapses && !c.needsWhole(p) {
		return c.readAlong(p, res)
	}
	if !c.awaitEnd(p) {
		return true
	}
	switch whole := p.Live.Whole; {
	case !collapses:
		return false
	case p.Live.Err != nil:
		return c.settleBroken(p.Live.Err)
	case whole == nil: // it was too much to be kept, or was purged
		return c.retry(httpcache.ErrUnshared)
	default:
		res.Stored = true
		c.out.serve(whole, res, whole.Freshness.InitialAge, "")
	}
	return true
}

// liveAge is the age of a page that is being written.
func liveAge(p *httpcache.Page) time.Duration {
	return p.Freshness.InitialAge + time.Since(p.Live.Since)
}

// needsWhole reports whether the answer to the request depends on the whole body, or can't
// tell that the body broke off.
func (c *call) needsWhole(p *httpcache.Page) bool {
	if _, ended := p.Live.Body.Kept(); ended {
		return true
	}
	h := c.asked.Header
	return h["Range"] != nil || !c.asked.ProtoAtLeast(1, 1) ||
		c.m.opts.MakeETag && h["If-None-Match"] != nil && len(p.Header["Etag"]) == 0
}

// readAlong answers a request as the body of its page grows.
func (c *call) readAlong(p *httpcache.Page, res guard.Result[*httpcache.Page]) bool {
	body := p.Live.Body.NewReader()
	if body == nil { // its beginning is gone
		return c.retry(httpcache.ErrUnshared)
	}
	a := c.out
	defer p.Live.Leave(body)
	answer := rfc9111.AnswerFor(a.asked.Request, p.Stored())
	if answer == rfc9111.AnswerElsewhere {
		a.pass(rfc9111.FwdBypass, "precondition")
		return true
	}
	h, age := a.w.Header(), liveAge(p)
	before := h.Clone()
	httpcache.AddHeader(h, p.Header)
	rfc9111.SetAge(h, age)
	a.m.site.addVia(h, 1, 1)
	st := rfc9111.Status{Fwd: a.forwarded(), Stored: p.Reusable() && !a.noEpoch, Collapsed: true}
	st.TTL = rfc9111.Seconds{Set: true, Value: p.Freshness.Left(age)}
	a.event.Source, a.event.Age = res.Source, age
	a.status(h, st)
	if answer == rfc9111.AnswerNotModified {
		a.notModified(h)
		return true
	}
	if p.Length != "" && httpcache.BodyAllowed(p.Status) {
		h["Content-Length"] = []string{p.Length}
	}
	wrote, err := a.copyBody(body, p.Status, func() http.Header { return p.Live.Trailer })
	switch {
	case err == nil:
	case wrote:
		a.event.Err = err
		panic(http.ErrAbortHandler) // a part must not look like the whole
	default:
		httpcache.ReplaceHeader(h, before)
		// The body ends before the turn does: until then another look finds this run.
		return !c.awaitEnd(p) || c.settleBroken(err)
	}
	return true
}

// awaitEnd waits until the run of a page that is being written is over, with its turn. If
// the client's context, SoftTimeout or WaitTimeout ends before, it answers the request as the
// guard does, and returns false.
func (c *call) awaitEnd(p *httpcache.Page) bool {
	soft, stopSoft := c.after(c.m.softTimeout)
	defer stopSoft()
	hard, stopHard := c.after(c.m.waitTimeout)
	defer stopHard()
	for {
		select {
		case <-p.Live.Over:
			return true
		case <-soft:
			if c.serveStale() {
				return false
			}
		case <-hard:
			if !c.serveStale() {
				c.out.fail(guard.ErrWaitTimeout, nil)
			}
			return false
		case <-c.asked.Context().Done():
			c.out.fail(context.Cause(c.asked.Context()), nil)
			return false
		}
	}
}

// after returns a channel that receives at a time after the request came; never, if d is 0.
func (c *call) after(d time.Duration) (<-chan time.Time, func() bool) {
	if d == 0 {
		return nil, func() bool { return false }
	}
	t := time.NewTimer(time.Until(c.out.event.began.Add(d)))
	return t.C, t.Stop
}

// serveStale answers from a stale page that may stand in for an error, if one is stored.
func (c *call) serveStale() bool {
	p, res, ok := c.peek(c.asked.Context())
	if !ok {
		return false
	}
	age := ageOf(p, res)
	if !rfc9111.MayServeOnError(p.Freshness, age, c.says) {
		return false
	}
	c.out.serve(p, res, age, "error")
	return true
}

// settleBroken answers a request that got no byte of a body which is not whole. It returns
// false if the call has to look again.
func (c *call) settleBroken(err error) bool {
	if errors.Is(err, httpcache.ErrNotWhole) {
		return c.retry(err)
	}
	c.out.fail(err, nil)
	return true
}
