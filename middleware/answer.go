package middleware

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// serve answers from a page. why says what it stands in for, if anything.
func (c *call) serve(p *page, res guard.Result[*page], age time.Duration, why string) {
	c.takeWriter() // from here on nothing else changes the decision
	st := rfc9111.Status{Detail: why}
	left := p.freshness.Left(age)
	st.TTL = rfc9111.Seconds{Set: true, Value: left}
	stored := res.Stored && p.ofUse() && !c.noEpoch
	switch res.Source {
	case guard.Fetched, guard.UnguardedFetch:
		st.Fwd, st.Stored, st.FwdStatus = c.forwarded(), stored, c.decision.fwdCode
	case guard.Waited:
		st.Fwd, st.Stored, st.Collapsed = c.forwarded(), stored, true
	default:
		st.Hit = why == ""
		if !st.Hit {
			st.Fwd = rfc9111.FwdStale
		}
	}
	c.event.Source, c.event.Age = res.Source, age
	c.write(p, age, st)
}

// forwarded is why the handler had to be asked.
func (c *call) forwarded() rfc9111.Fwd {
	switch {
	case c.decision.fwd != "":
		return c.decision.fwd
	case c.decision.fwdCode != 0:
		return rfc9111.FwdStale
	case c.index != nil:
		return rfc9111.FwdVaryMiss
	}
	return rfc9111.FwdURIMiss
}

// announce adds Cache-Status to a response that comes from a run of this call.
func (c *call) announce(h http.Header) {
	st := rfc9111.Status{Fwd: c.forwarded(), Stored: c.decision.stored, Detail: c.decision.reason}
	if c.decision.stored {
		st.TTL = rfc9111.Seconds{Set: true, Value: c.decision.ttl}
	}
	c.event.Source = guard.Fetched
	c.status(h, st)
}

// status adds Cache-Status, and keeps it for the event.
func (c *call) status(h http.Header, st rfc9111.Status) {
	st.Cache = c.m.opts.Name
	c.event.set(&st)
	if c.m.opts.HideCacheStatus {
		return
	}
	if c.m.opts.ShowKey {
		st.Key = c.event.key
	}
	st.AppendTo(h)
}

// write writes a page in the form that the request asks for.
func (c *call) write(p *page, age time.Duration, st rfc9111.Status) {
	w, r := c.takeWriter(), c.asked.Request
	answer := rfc9111.AnswerFor(r, &rfc9111.Response{Status: p.status, Header: p.header})
	if answer == rfc9111.AnswerElsewhere {
		c.pass(w, rfc9111.FwdBypass, "precondition")
		return
	}
	body, length := p.body, p.length
	h := w.Header()
	addHeader(h, p.header)
	if p.gzip != nil {
		if answer != rfc9111.AnswerRanges && acceptsGzip(r.Header) {
			body, length = p.gzip, ""
		}
		encoded(h, length == "")
	}
	rfc9111.SetAge(h, age)
	c.m.addVia(h, 1, 1)
	c.status(h, st)
	c.event.Status = p.status
	switch answer {
	case rfc9111.AnswerNotModified:
		replaceHeader(h, rfc9111.NotModifiedHeader(h))
		c.event.Status = http.StatusNotModified
		w.WriteHeader(http.StatusNotModified)
		return
	case rfc9111.AnswerRanges:
		rfc9111.RemoveContentDigests(h)
		cw := &countingWriter{ResponseWriter: w}
		http.ServeContent(cw, rfc9111.RangeRequest(r), "", time.Time{}, bytes.NewReader(body))
		c.event.Status, c.event.Bytes = cw.status, cw.n
		return
	}
	if bodyAllowed(p.status) && len(p.trailer) == 0 {
		if length == "" {
			length = strconv.Itoa(len(body))
		}
		h["Content-Length"] = []string{length}
	}
	declare(h, p.trailer)
	w.WriteHeader(p.status)
	if r.Method == http.MethodHead || !bodyAllowed(p.status) {
		return
	}
	n, _ := w.Write(body)
	c.event.Bytes = int64(n)
	copyHeader(h, p.trailer)
}

// declare says which trailers will follow the body, which net/http needs to know
// for short ones.
func declare(h, trailer http.Header) {
	if len(trailer) == 0 {
		return
	}
	h["Trailer"] = slices.Sorted(maps.Keys(trailer))
}

// A countingWriter learns what http.ServeContent made of a request.
type countingWriter struct {
	http.ResponseWriter
	status int
	n      int64
}

func (w *countingWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	return n, err
}

// fail answers a request for which there is no response.
func (c *call) fail(err error) {
	c.event.Err = err
	if c.asked.Context().Err() != nil {
		c.sayEnded()
		return
	}
	if r := c.ownRun(err); r != nil {
		c.stream(r)
		return
	}
	var status *statusError
	var panicked *panicError
	var remote *guard.RemoteError
	var exhausted *guard.ExhaustedError
	pause, paused := guard.PauseOf(err)
	switch {
	case errors.Is(err, guard.ErrReentrant):
		c.alone("")
	case errors.As(err, &panicked), errors.Is(err, errNotWhole):
		if r := c.lastRun(); r != nil {
			c.takeWriter()
			c.abort(r)
		}
		c.say(http.StatusBadGateway, 0, "The request that this one waited for was not answered. Try again.")
	case errors.Is(err, guard.ErrFetchTimeout):
		c.say(http.StatusGatewayTimeout, 0, "The answer took too long. Try again.")
	case errors.Is(err, guard.ErrWaitTimeout):
		if c.m.opts.OnWaitTimeout == RunAlone {
			c.runAlone()
			return
		}
		c.say(http.StatusServiceUnavailable, time.Second, "The request that this one waited for takes too long. Try again.")
	case errors.As(err, &exhausted):
		c.say(http.StatusTooManyRequests, exhausted.RetryAfter, "Too much has been asked for. Try again later.")
	case errors.Is(err, guard.ErrQuarantined):
		c.say(http.StatusServiceUnavailable, 30*time.Second, "This page keeps failing and is given a rest. Try again later.")
	case errors.Is(err, guard.ErrUnavailable):
		c.say(http.StatusServiceUnavailable, time.Second, "The cache can't be reached. Try again.")
	case errors.Is(err, guard.ErrClosed):
		c.say(http.StatusServiceUnavailable, time.Second, "The server is shutting down. Try again.")
	case paused:
		c.say(http.StatusServiceUnavailable, pause, "This page is given a rest. Try again later.")
	case errors.As(err, &status):
		c.say(status.status, 0, "The request that this one waited for failed.")
	case errors.As(err, &remote):
		c.say(http.StatusBadGateway, 0, "The request that this one waited for was not answered. Try again.")
	default:
		c.say(http.StatusInternalServerError, 0, "The page could not be had.")
	}
}

// ownRun is this call's run if its client is to read it in spite of an error: its
// response says that the handler failed, and no stale one could be had instead; or it
// only takes longer than others are to wait.
func (c *call) ownRun(err error) *run {
	r := c.lastRun()
	if r == nil {
		return nil
	}
	select {
	case <-r.committed:
		if r.status >= 500 || r.status != 0 && errors.Is(err, guard.ErrFetchTimeout) {
			return r
		}
	default:
	}
	return nil
}

func (c *call) lastRun() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.run
}

// runAlone runs the handler for a client that has waited for too long, if not
// too many are at that.
func (c *call) runAlone() {
	select {
	case c.m.aloneSlots <- struct{}{}:
		defer func() { <-c.m.aloneSlots }()
	case <-c.asked.Context().Done():
		c.sayEnded()
		return
	}
	c.pass(c.takeWriter(), c.forwarded(), "wait-timeout")
}

// sayEnded answers when the request's context has ended. If that is because its
// client has gone, nobody reads it; but somebody further out may have ended it, and
// without an answer the client would get an empty 200.
func (c *call) sayEnded() {
	if errors.Is(c.asked.Context().Err(), context.DeadlineExceeded) {
		c.say(http.StatusGatewayTimeout, 0, "The answer took too long. Try again.")
		return
	}
	c.say(http.StatusServiceUnavailable, time.Second, "The request was given up. Try again.")
	c.event.Status = 0 // as far as is known
}

// say answers with a short text. Nobody may store it.
func (c *call) say(status int, after time.Duration, text string) {
	w := c.takeWriter()
	h := w.Header()
	if after > 0 {
		setRetryAfter(h, after)
	}
	h.Set("Cache-Control", "no-store")
	st := rfc9111.Status{Fwd: c.forwarded()}
	if status == http.StatusGatewayTimeout && c.says.OnlyIfCached {
		st.Fwd, st.Detail = "", "only-if-cached" // it went nowhere
	}
	c.status(h, st)
	c.event.Status = status
	http.Error(w, text, status)
}

// setRetryAfter says it in whole seconds, at least one.
func setRetryAfter(h http.Header, d time.Duration) {
	h.Set("Retry-After", strconv.FormatInt(int64(max(1, (d+time.Second-1)/time.Second)), 10))
}

// notStored is for a request that is to be answered from what is stored alone.
func (c *call) notStored() {
	c.say(http.StatusGatewayTimeout, 0, "This is not stored, and nothing else was asked for.")
}

// lookUp answers from what is stored, without ever running the handler. It
// answers false if nothing stored will do.
func (c *call) lookUp() bool {
	ctx := c.asked.Context()
	p, res, ok := c.peek(ctx)
	if !ok {
		return false
	}
	age := ageOf(p, res)
	switch verdict, _ := rfc9111.MayServe(p.freshness, age, c.says); verdict {
	case rfc9111.ServeFresh, rfc9111.ServeStale, rfc9111.ServeAndRefresh:
		if verdict == rfc9111.ServeAndRefresh && c.asked.Method == http.MethodGet && !c.says.NoStore && !c.says.OnlyIfCached {
			return false // it is answered by what also has it produced anew
		}
		if c.says.OnlyIfCached && rfc9111.AnswerFor(c.asked.Request, &rfc9111.Response{Status: p.status, Header: p.header}) == rfc9111.AnswerElsewhere {
			return false // it isn't to be asked there
		}
		c.serve(p, res, age, "")
		return true
	}
	return false
}

// peek is the stored page for this request, fresh or stale.
func (c *call) peek(ctx context.Context) (p *page, res guard.Result[*page], ok bool) {
	epoch := ""
	if c.m.epochs {
		res, err := c.m.guard.Peek(ctx, keyEpoch+c.asked.target())
		if err != nil || res.Value.epoch == "" {
			return nil, res, false
		}
		epoch = res.Value.epoch
	}
	key := c.asked.key(epoch)
	res, err := c.m.guard.Peek(ctx, key)
	if err == nil && res.Value.ix != nil {
		ix := res.Value.ix
		key = variantKey(key, ix, rfc9111.VariantKey(ix.names, c.asked.varying(ix.names)))
		res, err = c.m.guard.Peek(ctx, key)
	}
	c.event.key = key
	if err != nil || res.Value.status == 0 {
		return nil, res, false
	}
	p = res.Value
	if len(p.vary) > 0 && p.variant != rfc9111.VariantKey(p.vary, c.asked.varying(p.vary)) {
		return nil, res, false
	}
	return p, res, true
}
