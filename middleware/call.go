package middleware

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A call is one GET on its way to an answer. The request's goroutine uses it.
type call struct {
	m     *Middleware
	asked *asked
	says  rfc9111.RequestControl // the request's Cache-Control
	out   *reply

	marked string     // the key that may be marked
	again  bool       // the run of another request had no answer for this one
	waited bool       // for a run that may have begun before the request: see mayCollapse
	had    *stalePage // that is being fetched anew for this request; nil: none
}

// A stalePage is a page that may be served if its successor can't be had.
type stalePage struct {
	page *httpcache.Page
	res  guard.Result[*httpcache.Page]
	age  time.Duration
}

// maxRounds bounds how often a call looks again, as it learns the names that a page varies
// on.
const maxRounds = 4

// answer answers a GET through the guard.
func (c *call) answer() {
	key, err := c.pageKey()
	if err != nil {
		c.out.fail(err, nil)
		return
	}
	for range maxRounds {
		if c.round(key) {
			return
		}
	}
	c.alone("")
}

// round looks for the page once. It returns false if the call has to look again.
func (c *call) round(key string) bool {
	c.out.varies = false
	at := slot{page: key}
	p, res, r, err := c.begin(&at)
	if err == nil && r == nil && p != nil && p.Index != nil {
		ix := p.Index
		c.out.varies = true
		at.ix, at.variant = ix, rfc9111.VariantKey(ix.Names, c.asked.varying(ix.Names))
		if 4*len(ix.Variants) >= 3*c.m.opts.MaxVariants && ix.Contains(at.variant) {
			c.m.pages.marks.Use(key, at.variant) // it is not to be the next that is dropped
		}
		p, res, r, err = c.begin(&at)
	}
	if r != nil {
		return c.follow(r)
	}
	return c.settle(&at, p, res, err)
}

// begin asks the guard. It returns a page, or the run that this call has started, or
// neither: then the slot is marked, and its requests run side by side.
func (c *call) begin(at *slot, opts ...guard.CallOption) (*httpcache.Page, guard.Result[*httpcache.Page], *run, error) {
	key := at.key()
	c.out.event.key, c.marked = key, key
	if c.m.pages.marks.Has(key) {
		return nil, guard.Result[*httpcache.Page]{}, nil, nil
	}
	res, turn, err := c.m.pages.guard.Begin(c.asked.runContext(), key, c.refresh(*at), opts...)
	switch {
	case turn == nil:
		return res.Value, res, nil, err
	case turn.Alone():
		c.m.pages.marks.Remember(key, c.out.event.began, turn.Fill.TTL)
		turn.Store(nil)
		return nil, res, nil, nil
	}
	return nil, res, c.start(turn, *at, newClient(c.out.w)), nil
}

// refresh starts a run in the background.
func (c *call) refresh(at slot) func(*guard.Turn[*httpcache.Page]) {
	return func(turn *guard.Turn[*httpcache.Page]) { c.start(turn, at, nil) }
}

// follow answers from the call's own run. It returns false if the call has to look again.
func (c *call) follow(r *run) bool {
	o := c.await(r)
	fwd := c.out.decision.fwd
	if fwd == "" && r.known != nil {
		fwd = rfc9111.FwdStale
	}
	c.out.decision = o.decision
	c.out.decision.fwd = fwd
	if o.then == readAlong {
		stream(c.out, r)
		return true
	}
	if o.then != giveUp {
		r.detach()
	}
	switch o.then {
	case servePage:
		c.out.serve(o.page, guard.Result[*httpcache.Page]{Source: guard.Fetched, Stored: o.stored}, o.page.Freshness.InitialAge, "")
	case runAlone:
		c.alone(c.marked)
	case lookAgain:
		return false
	case giveUp:
		defer r.detach()
		if s := c.staleFor(r); s != nil && c.asked.Context().Err() == nil {
			c.out.serve(s.page, s.res, s.age, "error")
			return true
		}
		c.out.fail(o.err, r)
	}
	return true
}

// await waits for the run's outcome, for the end of the client's context, and at most for
// SoftTimeout if there is a stale page to be served.
func (c *call) await(r *run) outcome {
	var soft <-chan time.Time
	if c.m.softTimeout > 0 && c.staleFor(r) != nil {
		after, stop := c.after(c.m.softTimeout)
		defer stop()
		soft = after
	}
	for {
		select {
		case <-r.ready:
			return r.out
		case i := <-r.client.hints:
			r.client.write(i)
		case <-c.asked.Context().Done():
			return outcome{then: giveUp, err: context.Cause(c.asked.Context())}
		case <-soft:
			if c.staleFor(r) != nil {
				return outcome{then: giveUp, err: errSoftTimeout}
			}
		}
	}
}

// errSoftTimeout is not returned: a stale page is served in its place.
var errSoftTimeout = errors.New("middleware: the run takes longer than SoftTimeout")

// staleFor returns the stale page that may be served if the run fails; nil: none.
func (c *call) staleFor(r *run) *stalePage {
	s := c.had
	if p := r.known; s == nil && p != nil {
		age := max(p.Freshness.InitialAge+r.knownAge(), p.Freshness.Lifetime)
		s = &stalePage{p, guard.Result[*httpcache.Page]{Source: guard.Stale, Stored: true}, age}
	}
	if s == nil || !c.asked.mayUse(s.page.Freshness) || !rfc9111.MayServeOnError(s.page.Freshness, s.age, c.says) {
		return nil
	}
	return s
}

// settle answers with the guard's page or error. It returns false if the call has to look
// again.
func (c *call) settle(at *slot, p *httpcache.Page, res guard.Result[*httpcache.Page], err error) bool {
	switch {
	case err != nil:
		return c.settleFailed(err)
	case p == nil:
		c.alone(c.marked)
	case p.Status == 0 || !c.asked.mayPass(p):
		return false
	default:
		return c.judge(at, p, res)
	}
	return true
}

// settleFailed is settle for an error.
func (c *call) settleFailed(err error) bool {
	var status *statusError
	passed := errors.As(err, &status) && status.page != nil
	switch {
	case passed && status.tagged && status.page.Began.Before(c.out.event.began):
		return c.retry(err)
	case passed && !c.asked.mixes() && c.asked.mayPass(status.page):
		c.out.serve(status.page, guard.Result[*httpcache.Page]{Source: guard.Waited}, 0, "")
	case passed, errors.Is(err, httpcache.ErrUnshared), errors.Is(err, httpcache.ErrNotWhole), isRefusal(err):
		return c.retry(err)
	default:
		c.out.fail(err, nil)
	}
	return true
}

// isRefusal reports whether an error says that a run in another process was answered 4xx:
// this request may have had other headers.
func isRefusal(err error) bool {
	status := httpcache.StatusOf(err)
	return status >= 400 && status < 500
}

// retry looks again, once, when the run of another request has no answer for this one. It
// returns false if the call has to look again.
func (c *call) retry(err error) bool {
	_, paused := guard.PauseOf(err)
	switch {
	case paused && !errors.Is(err, httpcache.ErrNotWhole):
		c.out.runAlone() // the page is not fetched for a while
		return true
	case !c.again:
		c.again = true
		var remote *guard.RemoteError
		if errors.As(err, &remote) && errors.Is(err, httpcache.ErrUnshared) {
			c.m.pages.marks.Strike(c.marked) // the run's process has counted its own
		}
		return false
	case errors.Is(err, httpcache.ErrNotWhole):
		c.out.fail(err, nil)
		return true
	}
	c.alone("")
	return true
}

// judge answers from a page if this request may have it, else it has the page validated.
// It returns false if the call has to look again.
func (c *call) judge(at *slot, p *httpcache.Page, res guard.Result[*httpcache.Page]) bool {
	if p.Live != nil && c.asked.mayUse(p.Freshness) {
		return c.readLive(p, res)
	}
	age := ageOf(p, res)
	switch {
	case !c.asked.mayUse(p.Freshness):
		c.alone("")
		return true
	case c.asked.mixes() && res.Source == guard.Waited && !usableAtOnce(p):
		return c.retry(httpcache.ErrUnshared) // the run may have had no credentials
	}
	switch res.Source {
	case guard.Waited:
		if !c.mayCollapse(p, p.Freshness.InitialAge) {
			return false
		}
		fallthrough
	case guard.UnguardedFetch:
		c.out.serve(p, res, age, "")
		return true
	}
	if res.Source == guard.Stale && p.Freshness.StaleWhileRevalidate == 0 && rfc9111.MayServeOnError(p.Freshness, age, c.says) {
		c.out.serve(p, res, age, "error") // the guard's only reason to return it
		return true
	}
	switch verdict, why := rfc9111.MayServe(p.Freshness, age, c.says); verdict {
	case rfc9111.Validate:
		return c.reload(at, &stalePage{p, res, age}, why)
	case rfc9111.GatewayTimeout:
		c.out.notStored()
	default:
		if rand.Uint32()%trustEvery == 0 {
			c.m.pages.marks.Hit(at.key())
		}
		c.m.pages.kept.use(at.page)
		c.out.serve(p, res, age, "")
	}
	return true
}

// trustEvery is the number of hits of which one, at random, is noted for its key.
const trustEvery = 16

// usableAtOnce reports whether a page may be used without a validation. A failure that is
// passed to requests that waited may not.
func usableAtOnce(p *httpcache.Page) bool {
	verdict, _ := rfc9111.MayServe(p.Freshness, p.Freshness.InitialAge, rfc9111.RequestControl{})
	return verdict != rfc9111.Validate
}

// mayCollapse reports whether the run of another request answers this one at an age, even if
// each use needs a validation. It does if the run began after the request came. The beginning
// is known of runs in this process. Runs of other processes come one after the other: the
// second one that is waited for began later.
func (c *call) mayCollapse(p *httpcache.Page, age time.Duration) bool {
	verdict, _ := rfc9111.MayServe(p.Freshness, age, c.says)
	if verdict != rfc9111.Validate || p.Status >= 500 || !p.Reusable() || c.waited || !p.Began.IsZero() && !p.Began.Before(c.out.event.began) {
		return true
	}
	c.waited = true
	return false
}

// reload fetches a page anew that this request may not have as it is, together with all
// requests that want the same.
func (c *call) reload(at *slot, old *stalePage, why rfc9111.Fwd) bool {
	c.out.decision.fwd, c.had = why, old
	p, res, r, err := c.begin(at, guard.MaxAge(0))
	switch {
	case r != nil:
		return c.follow(r)
	case err != nil && !errors.Is(err, httpcache.ErrUnshared) && !isRefusal(err) && c.asked.Context().Err() == nil &&
		rfc9111.MayServeOnError(old.page.Freshness, old.age, c.says):
		c.out.serve(old.page, old.res, old.age, "error")
		return true
	}
	res.Source = guard.Waited // the run was not over when this request came
	return c.settle(at, p, res, err)
}

// ageOf is the age of a page. A page that was expired by hand is as old as its lifetime.
func ageOf(p *httpcache.Page, res guard.Result[*httpcache.Page]) time.Duration {
	age := p.Freshness.InitialAge + res.Age
	if res.Source == guard.Stale {
		age = max(age, p.Freshness.Lifetime)
	}
	return age
}

// alone runs the handler for this client only, with the whole request. key is the marked
// key that is the reason for it, if one is.
func (c *call) alone(key string) {
	began := time.Now()
	pw := c.out.pass(rfc9111.FwdBypass, "private")
	if key != "" && pw.couldBeShared(c.out) {
		c.m.pages.lift(c.asked.Context(), key, began)
	}
}

// pageKey is the guard's key of the page. If the options make more than the target part
// of it, the key contains an epoch, by which all pages of the target can be forgotten.
func (c *call) pageKey() (string, error) {
	if !c.asked.terms.epochs {
		return c.asked.key(""), nil
	}
	res, err := c.m.pages.guard.Load(c.asked.Context(), keyEpoch+c.asked.page(), newEpoch)
	switch {
	case err != nil:
		return "", err
	case res.Value == nil || res.Value.Epoch == "":
		return "", errors.New("middleware: the store holds another entry in place of an epoch")
	case res.Source == guard.UnguardedFetch:
		c.out.noEpoch = true
		return c.asked.key("away"), nil // so that simultaneous requests can still share
	case res.Source == guard.FromReserve:
		c.out.noEpoch = true // it may have been deleted: pages of the reserve are served, and none stored
	}
	return c.asked.key(res.Value.Epoch), nil
}

func newEpoch(_ context.Context, f *guard.Fill[*httpcache.Page]) (*httpcache.Page, error) {
	f.TTL, f.StaleFor, f.Cost = epochTTL, guard.Off, 0 // no run, and so no cost
	return &httpcache.Page{Epoch: httpcache.RandomName()}, nil
}

// epochTTL bounds the time for which anything is stored for a target.
const epochTTL = 30 * 24 * time.Hour

// start starts the run of a turn on a goroutine that ends when the handler has returned
// and the turn has ended. The client is nil for a refresh.
func (c *call) start(turn *guard.Turn[*httpcache.Page], at slot, cl *client) *run {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(turn.Context()))
	ctx = httpcache.WithRun(ctx, &httpcache.Run{Shared: !c.asked.credentialed, Background: cl == nil})
	r := &run{
		m: c.m, next: c.out.next, asked: c.asked, at: at, noEpoch: c.out.noEpoch, cancel: cancel, began: time.Now(),
		rec: httpcache.NewRecording(c.m.opts.MaxBody), client: cl,
		handlers: http.Header{}, expected: -1, ready: make(chan struct{}), ended: make(chan struct{}),
	}
	if s := turn.Fill.Stale; s != nil && (*s).Status != 0 {
		r.stale, r.known, r.knownAge = *s, *s, turn.StaleAge
	}
	if cl != nil {
		r.reader = r.rec.NewReader()
	}
	r.req = c.asked.shared(ctx, at.names())
	if r.stale != nil {
		r.asksStale = setConditions(r.req.Header, r.stale, c.m.opts.MakeETag)
	}
	r.take(turn)
	stop := context.AfterFunc(c.m.ctx, func() { cancel(errClosing) })
	inTime := httpcache.AfterFunc(c.m.fetchTimeout, r, (*run).tooLong)
	go func() {
		defer cancel(nil)
		defer stop()
		defer inTime()
		defer r.end()
		for again := true; again; again = r.goAgain() {
			r.serve()
		}
	}()
	return r
}
