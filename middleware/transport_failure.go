package middleware

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A trRejection is an answer of the upstream that is a failure: 429 and 5xx. Those
// who wait get it, once, and nothing is stored. In other processes, and while the
// upstream is to be left alone, what is left of it is the status.
type trRejection struct {
	status  int
	header  http.Header // what others may have of it
	trailer http.Header
	body    []byte
	private bool     // its header and body are for the one who asked
	names   []string // it varies on
	variant string   // what they were in the request
}

func (e *trRejection) Error() string {
	return fmt.Sprintf("middleware: the upstream answered %d %s", e.status, http.StatusText(e.status))
}

// Is makes errors.Is find the status.
func (e *trRejection) Is(target error) bool {
	return target == errStatuses[e.status] || target == errRejected
}

// The statuses that other processes can tell, by guard.Policy.Errors.
var (
	errRejected = errors.New("middleware: the upstream rejected the call")
	errStatuses = map[int]error{}
	sentinels   = map[string]error{"http-rejected": errRejected}
)

func init() {
	for _, status := range []int{403, 429, 500, 501, 502, 503, 504, 505, 507, 508, 520, 521, 522, 523, 524, 525, 526, 529, 530} {
		errStatuses[status] = fmt.Errorf("%w: %d", errRejected, status)
		sentinels[fmt.Sprint("http-", status)] = errStatuses[status]
	}
}

// rejectedWith is the status that an error stands for; 0: none, as it is no
// answer of the upstream.
func rejectedWith(err error) int {
	var own *trRejection
	if errors.As(err, &own) {
		return own.status
	}
	if !errors.Is(err, errRejected) {
		return 0
	}
	for status, sentinel := range errStatuses {
		if errors.Is(err, sentinel) {
			return status
		}
	}
	return http.StatusBadGateway // one that only the other process knew
}

// isFailure reports whether an answer is one.
func isFailure(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests
}

// pauseFor is how long the upstream asks to be left alone, 0 if it doesn't.
func (t *Transport) pauseFor(resp *http.Response, now time.Time) time.Duration {
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusForbidden:
	default:
		return 0
	}
	d, ok := retryAfterOf(resp.Header, now)
	if !ok && resp.StatusCode == http.StatusTooManyRequests {
		d = time.Second // it must be asked less often, and didn't say how much
	}
	return min(d, t.opts.MaxPause)
}

// notReached reports whether an error says that the upstream wasn't asked, or has
// asked to be left alone: it is as good as disconnected, so that a stale response
// may be served unless it says never (RFC 9111, 4.2.4).
func notReached(err error) bool {
	var exhausted *guard.ExhaustedError
	if errors.As(err, &exhausted) {
		return true
	}
	_, paused := guard.PauseOf(err)
	status := rejectedWith(err)
	return status == http.StatusTooManyRequests || (paused && (status == http.StatusServiceUnavailable || status == http.StatusForbidden))
}

// mayServeInstead reports whether a stored page of an age may stand in for a
// failure.
func mayServeInstead(p *page, age time.Duration, control rfc9111.RequestControl, err error) bool {
	status := rejectedWith(err)
	f := p.freshness
	if notReached(err) && !f.NeverStale && !f.NoCache && !control.NoCache {
		return true
	}
	if status != 0 && !rfc9111.IsError(status) {
		return false
	}
	return rfc9111.MayServeOnError(f, age, control)
}
