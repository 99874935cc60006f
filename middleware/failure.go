package middleware

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// fail answers a request for which there is no page. r is the call's own run, if it has
// started one.
func (a *reply) fail(err error, r *run) {
	a.event.Err = err
	if a.asked.Context().Err() != nil {
		a.sayEnded()
		return
	}
	var status *statusError
	var panicked *panicError
	var remote *guard.RemoteError
	var exhausted *guard.ExhaustedError
	pause, paused := guard.PauseOf(err)
	switch {
	case errors.Is(err, guard.ErrReentrant):
		a.pass(rfc9111.FwdBypass, "private")
	case errors.As(err, &panicked), errors.Is(err, httpcache.ErrNotWhole):
		if r != nil {
			abort(a, r)
		}
		a.say(http.StatusBadGateway, 0, "The request that this one waited for was not answered. Try again.")
	case errors.Is(err, guard.ErrFetchTimeout):
		a.say(http.StatusGatewayTimeout, 0, "The answer took too long. Try again.")
	case errors.Is(err, guard.ErrWaitTimeout):
		if a.m.opts.OnWaitTimeout == RunAlone {
			a.runAlone()
			return
		}
		a.sayBusy()
	case errors.As(err, &exhausted):
		a.say(http.StatusTooManyRequests, exhausted.RetryAfter, "Too much has been asked for. Try again later.")
	case errors.Is(err, guard.ErrQuarantined):
		a.say(http.StatusServiceUnavailable, 30*time.Second, "This page keeps failing and is given a rest. Try again later.")
	case errors.Is(err, guard.ErrUnavailable):
		a.say(http.StatusServiceUnavailable, time.Second, "The cache can't be reached. Try again.")
	case errors.Is(err, guard.ErrClosed):
		a.say(http.StatusServiceUnavailable, time.Second, "The server is shutting down. Try again.")
	case paused:
		a.say(http.StatusServiceUnavailable, pause, "This page is given a rest. Try again later.")
	case errors.As(err, &status) && r != nil:
		stream(a, r) // no stale page may be served in its place
	case httpcache.StatusOf(err) != 0:
		a.say(httpcache.StatusOf(err), 0, "The request that this one waited for failed.")
	case errors.As(err, &remote):
		a.say(http.StatusBadGateway, 0, "The request that this one waited for was not answered. Try again.")
	default:
		a.say(http.StatusInternalServerError, 0, "The page could not be had.")
	}
}

// sayBusy answers a request that has waited for too long.
func (a *reply) sayBusy() {
	a.say(http.StatusServiceUnavailable, time.Second, "The answer takes too long. Try again.")
}

// runAlone runs the handler for a client that has waited for too long. Options.MaxAlone
// bounds such runs.
func (a *reply) runAlone() {
	t := time.NewTimer(a.m.waitTimeout)
	defer t.Stop()
	select {
	case a.m.aloneSlots <- struct{}{}:
		defer func() { <-a.m.aloneSlots }()
	case <-t.C:
		a.sayBusy()
		return
	case <-a.asked.Context().Done():
		a.sayEnded()
		return
	}
	a.pass(a.forwarded(), "wait-timeout")
}

// sayEnded answers when the request's context has ended. The client may be there, if a
// layer further out has ended the context: without an answer it would get an empty 200.
func (a *reply) sayEnded() {
	if errors.Is(a.asked.Context().Err(), context.DeadlineExceeded) {
		a.say(http.StatusGatewayTimeout, 0, "The answer took too long. Try again.")
		return
	}
	a.say(http.StatusServiceUnavailable, time.Second, "The request was given up. Try again.")
	a.event.Status = 0 // as far as is known
}

// say answers with a short text that must not be stored.
func (a *reply) say(status int, after time.Duration, text string) {
	h := a.w.Header()
	httpcache.SetFailure(h, after)
	st := rfc9111.Status{Fwd: a.forwarded()}
	if status == http.StatusGatewayTimeout && a.says.OnlyIfCached {
		st.Fwd, st.Detail = "", "only-if-cached" // the handler was not called
	}
	a.status(h, st)
	a.event.Status = status
	http.Error(a.w, text, status)
}

// notStored answers a request that wants a stored page only, and for which there is none.
func (a *reply) notStored() {
	a.say(http.StatusGatewayTimeout, 0, "This is not stored, and nothing else was asked for.")
}
