package transport

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A rejection is an answer of the upstream that is a failure: 429 or 5xx. The requests
// that wait get it, once, and nothing is stored. In other processes, and during the
// pause that the upstream asked for, only the status is left.
type rejection struct {
	status  int
	header  http.Header // the part that others may have
	trailer http.Header
	body    []byte
	private bool     // header and body are for the client of the call
	names   []string // it varies on
	variant string   // of the request
}

func (e *rejection) Error() string {
	return fmt.Sprintf("transport: the upstream answered %d %s", e.status, http.StatusText(e.status))
}

// Unwrap returns the error that stands for the status in other processes.
func (e *rejection) Unwrap() error { return httpcache.StatusError(e.status) }

// rejectedWith is the status that an error stands for; 0: the error is no answer of the
// upstream.
func rejectedWith(err error) int {
	var own *rejection
	if errors.As(err, &own) {
		return own.status
	}
	return httpcache.StatusOf(err)
}

// isFailure reports whether a status is that of a rejection.
func isFailure(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests
}

// pauseFor is the pause that the upstream asks for; 0: none.
func pauseFor(resp *http.Response, now time.Time, most time.Duration) time.Duration {
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusForbidden:
	default:
		return 0
	}
	d, ok := retryAfterOf(resp.Header, now)
	if !ok && resp.StatusCode == http.StatusTooManyRequests {
		d = time.Second // a 429 asks for a pause, if not for how long
	}
	return min(d, most)
}

// notReached reports whether an error says that the upstream was not called, or asked for
// a pause. It is as good as disconnected then: a stale response may be served unless it
// forbids that (RFC 9111, 4.2.4).
func notReached(err error) bool {
	var exhausted *guard.ExhaustedError
	if errors.As(err, &exhausted) {
		return true
	}
	_, paused := guard.PauseOf(err)
	status := rejectedWith(err)
	return status == http.StatusTooManyRequests || (paused && (status == http.StatusServiceUnavailable || status == http.StatusForbidden))
}

// mayServeInstead reports whether a stored page of an age may be served instead of a
// failure.
func mayServeInstead(p *httpcache.Page, age time.Duration, control rfc9111.RequestControl, err error) bool {
	status := rejectedWith(err)
	f := p.Freshness
	if notReached(err) && !f.NeverStale && !f.NoCache && !control.NoCache {
		return true
	}
	if status != 0 && !rfc9111.IsError(status) {
		return false
	}
	return rfc9111.MayServeOnError(f, age, control)
}

// retryAfterOf is the pause that a response's header asks for: by Retry-After, or because a
// quota is used up until it is renewed.
func retryAfterOf(h http.Header, now time.Time) (time.Duration, bool) {
	// The status of a 403 adds nothing to the header's meaning.
	a := budget.Advise(http.StatusForbidden, h, now)
	if a.Pause == 0 && a.Remaining == 0 {
		a.Pause = a.Reset
	}
	return a.Pause, a.Pause > 0
}
