package middleware

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// An Event is one request and its answer. The fields from Hit to Detail are those of
// Cache-Status (RFC 9211), whether that is hidden or not.
type Event struct {
	Request  *http.Request
	Status   int   // of the response; 0: none was sent
	Bytes    int64 // of its body
	Duration time.Duration

	Hit       bool
	Fwd       string // the reason for a call of the handler: "uri-miss", "stale", "bypass" ...
	FwdStatus int
	Stored    bool // of a response that streamed: it was to be stored when its header was sent
	Collapsed bool // it waited for the run of another request
	TTL       time.Duration
	Detail    string // the reason why it is not stored: "private", "set-cookie" ...

	Source guard.Source  // of the response, Fetched if it streamed; 0: the guard was not asked
	Age    time.Duration // of the response
	Err    error         // the reason why there was no proper response, or why a purge failed

	key   string
	began time.Time
}

func (e *Event) set(st *rfc9111.Status) {
	e.Hit, e.Fwd, e.FwdStatus, e.Stored, e.Collapsed, e.Detail = st.Hit, string(st.Fwd), st.FwdStatus, st.Stored, st.Collapsed, st.Detail
	if st.TTL.Set {
		e.TTL = st.TTL.Value
	}
}

// Stats are numbers of requests in this process since the middleware was made. Each is
// consistent by itself.
type Stats struct {
	Requests  uint64
	Hits      uint64 // answered from a stored page
	Stale     uint64 // answered from a stale page: hits, or forwarded if the page stands in for an error
	Forwarded uint64 // answered by a run of the handler that they started
	Collapsed uint64 // answered by the run of another request
	Bypassed  uint64 // the handler ran for them alone
	Stored    uint64 // responses that were to be stored: with the store away or full they are not
	Failed    uint64 // no proper response, or one that was cut short

	Guard guard.Stats // of the guard behind the middleware
}

type counters struct {
	requests, hits, stale, forwarded, collapsed, bypassed, stored, failed atomic.Uint64
}
