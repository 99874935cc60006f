package middleware

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/callers"
)

// A trCall is how a call is made.
type trCall struct {
	p   *HostPolicy
	now bool // or not at all, as far as a budget is concerned

	// callers wait for it, the first of them no longer than until deadline, if that
	// isn't zero; nil: it is for one, whose context is the call's.
	callers  callers.Callers
	deadline time.Time

	sent *time.Time // set to when the last attempt was; nil: nobody asks
}

// open makes a call for a response that may outlive the request that asked for it:
// the call ends with ctx, until the download is tied to something else.
func (t *Transport) open(ctx context.Context, c trCall, req *http.Request) (*trDownload, error) {
	callCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	resp, err := t.send(callCtx, c, req.WithContext(callCtx)) //nolint:bodyclose // the download closes it
	stop()
	if err != nil {
		cancel(err)
		return nil, err
	}
	d := newTrDownload(resp, req.Method, cancel)
	d.tie(ctx)
	return d, nil
}

// send makes a call, and repeats it as the policy says. The request isn't changed,
// and its body is closed.
func (t *Transport) send(ctx context.Context, c trCall, req *http.Request) (*http.Response, error) {
	p := c.p
	if p.Retry.Max == 0 || !repeatable(req) {
		return t.call(ctx, c, req)
	}
	var last *http.Response
	first := true
	try := func() (*http.Response, error) {
		if !first {
			if err := rewind(&req); err != nil {
				return nil, backoff.Permanent(err)
			}
		}
		first = false
		resp, err := t.call(ctx, c, req)
		last = resp
		switch {
		case err != nil && (ctx.Err() != nil || isHopeless(err)):
			return nil, backoff.Permanent(err)
		case err != nil:
		case !worthRepeating(resp.StatusCode):
			return resp, nil
		default:
			err = errors.New(resp.Status)
			if d, ok := retryAfterOf(resp.Header, time.Now()); ok {
				err = &backoff.RetryAfterError{Duration: d}
			}
		}
		return resp, err
	}
	again := func(error, time.Duration) {
		if last != nil {
			_, _ = io.CopyN(io.Discard, last.Body, 16<<10)
			_ = last.Body.Close()
			last = nil
		}
	}
	resp, err := backoff.Retry(ctx, try,
		backoff.WithBackOff(fullJitter(p.Retry)), backoff.WithMaxTries(uint(p.Retry.Max)+1),
		backoff.WithMaxElapsedTime(p.Retry.MaxElapsed), backoff.WithNotify(again))
	if last != nil {
		return last, nil // the last answer, whatever it was
	}
	if err == nil {
		return resp, nil
	}
	return nil, err
}

// fullJitter: each delay is between 0 and twice the interval.
func fullJitter(r Retry) backoff.BackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: (r.Base + 1) / 2, MaxInterval: (r.MaxDelay + 1) / 2, Multiplier: 2, RandomizationFactor: 1,
	}
}

// repeatable reports whether a request may be made twice.
func repeatable(req *http.Request) bool {
	if req.Body != nil && req.Body != http.NoBody && req.GetBody == nil {
		return false
	}
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return len(req.Header["Upgrade"]) == 0
	}
	return len(req.Header["Idempotency-Key"]) > 0 || len(req.Header["X-Idempotency-Key"]) > 0
}

func worthRepeating(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// isHopeless: nothing was sent and nothing would be the next time.
func isHopeless(err error) bool {
	var exhausted *guard.ExhaustedError
	return errors.As(err, &exhausted) || errors.Is(err, callers.ErrUnwanted) || errors.Is(err, http.ErrSkipAltProtocol) || errors.Is(err, context.Canceled) ||
		strings.Contains(err.Error(), "unsupported protocol scheme")
}

// rewind puts the body back to its start, in a copy of the request.
func rewind(req **http.Request) error {
	if (*req).GetBody == nil || (*req).Body == nil {
		return nil
	}
	body, err := (*req).GetBody()
	if err != nil {
		return err
	}
	again := new(http.Request)
	*again = **req
	again.Body = body
	*req = again
	return nil
}
