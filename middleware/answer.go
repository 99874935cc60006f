package middleware

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A reply answers one request. The request's goroutine uses it.
type reply struct {
	m     *Middleware
	next  http.Handler
	asked *asked
	says  *rfc9111.RequestControl // the request's Cache-Control
	w     http.ResponseWriter

	event    Event
	decision decision // about the response of the request's own run
	varies   bool     // the page has an index
	noEpoch  bool     // nothing may be stored, as no purge would reach it
}

// serve answers from a page. why is the detail of a page that stands in for an error.
func (a *reply) serve(p *httpcache.Page, res guard.Result[*httpcache.Page], age time.Duration, why string) {
	st := rfc9111.Status{Detail: why}
	left := p.Freshness.Left(age)
	st.TTL = rfc9111.Seconds{Set: true, Value: left}
	stored := res.Stored && p.Reusable() && !a.noEpoch
	switch res.Source {
	case guard.Fetched, guard.UnguardedFetch:
		st.Fwd, st.Stored, st.FwdStatus = a.forwarded(), stored, a.decision.fwdCode
	case guard.Waited:
		st.Fwd, st.Stored, st.Collapsed = a.forwarded(), stored, true
	default:
		st.Hit = why == ""
		if !st.Hit {
			st.Fwd = rfc9111.FwdStale
		}
	}
	a.event.Source, a.event.Age = res.Source, age
	a.write(p, age, st)
}

// forwarded is the reason why the handler had to be called.
func (a *reply) forwarded() rfc9111.Fwd {
	switch {
	case a.decision.fwd != "":
		return a.decision.fwd
	case a.decision.fwdCode != 0:
		return rfc9111.FwdStale
	case a.varies:
		return rfc9111.FwdVaryMiss
	}
	return rfc9111.FwdURIMiss
}

// announce adds Cache-Status to the response of this call's run.
func (a *reply) announce(h http.Header) {
	st := rfc9111.Status{Fwd: a.forwarded(), Stored: a.decision.stored, Detail: a.decision.reason}
	if a.decision.stored {
		st.TTL = rfc9111.Seconds{Set: true, Value: a.decision.ttl}
	}
	a.event.Source = guard.Fetched
	a.status(h, st)
}

// status adds Cache-Status and notes it for the event.
func (a *reply) status(h http.Header, st rfc9111.Status) {
	a.statusIn(h, st, &httpcache.Lines{})
}

// statusIn is status with room for a line.
func (a *reply) statusIn(h http.Header, st rfc9111.Status, room *httpcache.Lines) {
	st.Cache = a.m.opts.Name
	a.event.set(&st)
	if a.m.opts.HideCacheStatus {
		return
	}
	if a.m.opts.ShowKey {
		st.Key = a.event.key
	}
	if len(h["Cache-Status"]) > 0 {
		st.AppendTo(h)
		return
	}
	h["Cache-Status"] = room.Line(st.String())
}

// write writes a page in the form that the request asks for.
func (a *reply) write(p *httpcache.Page, age time.Duration, st rfc9111.Status) {
	w, r := a.w, a.asked.Request
	answer := rfc9111.AnswerFor(r, p.Stored())
	if answer == rfc9111.AnswerElsewhere {
		a.pass(rfc9111.FwdBypass, "precondition")
		return
	}
	body, length := p.Body, p.Length
	h := w.Header()
	room := httpcache.AddHeader(h, p.Header)
	if p.Gzip != nil {
		if answer != rfc9111.AnswerRanges && acceptsGzip(r.Header) {
			body, length = p.Gzip, ""
		}
		encoded(h, length == "")
	}
	h["Age"] = room.Line(rfc9111.AgeLine(age))
	a.m.site.addVia(h, 1, 1)
	a.statusIn(h, st, &room)
	a.event.Status = p.Status
	switch answer {
	case rfc9111.AnswerNotModified:
		a.notModified(h)
		return
	case rfc9111.AnswerRanges:
		a.event.Status, a.event.Bytes = httpcache.ServeRanges(w, r, body)
		return
	}
	if httpcache.BodyAllowed(p.Status) && len(p.Trailer) == 0 {
		if length == "" {
			length = strconv.Itoa(len(body))
		}
		h["Content-Length"] = room.Line(length)
	}
	declare(h, p.Trailer)
	w.WriteHeader(p.Status)
	if r.Method == http.MethodHead || !httpcache.BodyAllowed(p.Status) {
		return
	}
	n, _ := w.Write(body)
	a.event.Bytes = int64(n)
	httpcache.CopyHeader(h, p.Trailer)
}

// declare names the trailers that will follow the body, as net/http needs for short bodies.
func declare(h, trailer http.Header) {
	if len(trailer) == 0 {
		return
	}
	h["Trailer"] = slices.Sorted(maps.Keys(trailer))
}

// notModified answers 304.
func (a *reply) notModified(h http.Header) {
	httpcache.ReplaceHeader(h, rfc9111.NotModifiedHeader(h))
	a.event.Status = http.StatusNotModified
	a.w.WriteHeader(http.StatusNotModified)
}

// report counts the request and calls Options.Observe.
func (a *reply) report() {
	e := &a.event
	n := &a.m.counters
	n.requests.Add(1)
	switch {
	case e.Hit:
		n.hits.Add(1)
	case e.Collapsed:
		n.collapsed.Add(1)
	case e.Fwd == string(rfc9111.FwdBypass), e.Fwd == string(rfc9111.FwdMethod):
		n.bypassed.Add(1)
	case e.Fwd == "" && e.Status == http.StatusGatewayTimeout: // only-if-cached
	default:
		n.forwarded.Add(1)
	}
	if e.Source == guard.Stale {
		n.stale.Add(1)
	}
	if e.Stored && !e.Collapsed {
		n.stored.Add(1)
	}
	if e.Err != nil {
		n.failed.Add(1)
	}
	if a.m.opts.Observe != nil {
		e.Duration = time.Since(e.began)
		a.m.opts.Observe(*e)
	}
}
