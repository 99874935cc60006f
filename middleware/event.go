package middleware

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// An Event is one request and what became of it. The fields from Hit to Detail are
// those of Cache-Status (RFC 9211), whether that is hidden or not.
type Event struct {
	Request  *http.Request
	Status   int   // of the response; 0: none was sent
	Bytes    int64 // of its body
	Duration time.Duration

	Hit       bool
	Fwd       string // why the handler was asked: "uri-miss", "stale", "bypass" ...
	FwdStatus int
	Stored    bool // of a response that streamed: it was to be, as its header was sent before
	Collapsed bool // it waited for the run of another request
	TTL       time.Duration
	Detail    string // why it isn't stored: "private", "set-cookie" ...

	Source guard.Source  // where the guard had the response from, Fetched if it streamed; 0: it wasn't asked
	Age    time.Duration // of the response
	Err    error         // why there was no proper response, or nothing could be forgotten

	key   string
	began time.Time
}

func (e *Event) set(st *rfc9111.Status) {
	e.Hit, e.Fwd, e.FwdStatus, e.Stored, e.Collapsed, e.Detail = st.Hit, string(st.Fwd), st.FwdStatus, st.Stored, st.Collapsed, st.Detail
	if st.TTL.Set {
		e.TTL = st.TTL.Value
	}
}

// Stats is what a middleware has done in this process since it was made: numbers
// of requests, each consistent by itself.
type Stats struct {
	Requests  uint64
	Hits      uint64 // answered from what is stored
	Stale     uint64 // answered from what was stale: hits, or forwarded where that stands in for an error
	Forwarded uint64 // answered by a run of the handler that they started
	Collapsed uint64 // answered by the run of another request
	Bypassed  uint64 // not for the cache: the handler ran for them alone
	Stored    uint64 // responses that were to be stored: with the store away or full they are not
	Failed    uint64 // no proper response, or one that was cut short

	Guard guard.Stats // what is behind it, in the guard's terms
}

type counters struct {
	requests, hits, stale, forwarded, collapsed, bypassed, stored, failed atomic.Uint64
}

// Stats returns a snapshot.
func (m *Middleware) Stats() Stats {
	c := &m.counters
	return Stats{
		Requests: c.requests.Load(), Hits: c.hits.Load(), Stale: c.stale.Load(), Forwarded: c.forwarded.Load(),
		Collapsed: c.collapsed.Load(), Bypassed: c.bypassed.Load(), Stored: c.stored.Load(), Failed: c.failed.Load(),
		Guard: m.guard.Stats(),
	}
}

// report counts the request and tells who wants to know.
func (c *call) report() {
	e := &c.event
	n := &c.m.counters
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
	if c.m.opts.Observe != nil {
		e.Duration = time.Since(e.began)
		c.m.opts.Observe(*e)
	}
}
