package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/httpcache"
)

// An attempt says how an upstream is called.
type attempt struct {
	p       *HostPolicy
	now     bool       // it does not wait for its budget
	waiters waiters    // nil: the call is for one request, and has that request's context
	sent    *time.Time // set to the time of the last attempt; nil: not
}

// waiters are the requests that wait for a call.
type waiters interface {
	// isRefresh reports whether the call refreshes a page that is served meanwhile.
	isRefresh() bool
	// deadline returns that of the only request that waits, if only one does.
	deadline() (time.Time, bool)
	// whileWanted returns a context that ends when no request waits any more.
	whileWanted(ctx context.Context) (wanted context.Context, stop func())
}

// send calls the upstream, and again as the policy's Retry says. It does not change the
// request, and closes its body.
func (t *Transport) send(ctx context.Context, c attempt, req *http.Request) (*http.Response, error) {
	p := c.p
	if p.Retry.Max == 0 || !repeatable(req) {
		return t.attempt(ctx, c, req)
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
		resp, err := t.attempt(ctx, c, req)
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
			body := last.Body
			drain(body, func() { _ = body.Close() })
			_ = body.Close()
			last = nil
		}
	}
	resp, err := backoff.Retry(ctx, try,
		backoff.WithBackOff(fullJitter(p.Retry)), backoff.WithMaxTries(uint(p.Retry.Max)+1),
		backoff.WithMaxElapsedTime(p.Retry.MaxElapsed), backoff.WithNotify(again))
	if last != nil {
		return last, nil // the last answer
	}
	if err == nil {
		return resp, nil
	}
	return nil, err
}

// fullJitter returns delays that are random between 0 and a bound that doubles.
func fullJitter(r Retry) backoff.BackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: (r.Base + 1) / 2, MaxInterval: (r.MaxDelay + 1) / 2, Multiplier: 2, RandomizationFactor: 1,
	}
}

// repeatable reports whether a request may be sent twice.
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

// isHopeless reports whether a further attempt would fail in the same way.
func isHopeless(err error) bool {
	var exhausted *guard.ExhaustedError
	return errors.As(err, &exhausted) || errors.Is(err, errDeserted) || errors.Is(err, http.ErrSkipAltProtocol) || errors.Is(err, context.Canceled) ||
		strings.Contains(err.Error(), "unsupported protocol scheme")
}

// rewind replaces the request by a copy with its body at its start.
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

// A learner is a budget that heeds the headers of responses, as [budget.Budget] does.
type learner interface {
	Learn(ctx context.Context, status int, header http.Header) (budget.Advice, error)
}

// maxHold bounds the time for which a call counts as under way, for bodies that are never
// closed. Calls end with their body, or with their request's context.
const maxHold = 24 * time.Hour

// attempt pays for one call of the upstream and makes it.
func (t *Transport) attempt(ctx context.Context, c attempt, req *http.Request) (*http.Response, error) {
	if c.p.Budget == nil {
		return t.callBase(c, req)
	}
	cost := c.p.cost(req, nil)
	expense, err := c.spend(ctx, cost)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	over := true
	defer func() {
		if over {
			expense.Settle(cost) // the upstream may have got it, also if something panicked
		}
	}()
	resp, err := t.callBase(c, req)
	if err != nil {
		return nil, err
	}
	if b, ok := c.p.Budget.(learner); ok && c.p.named {
		_, _ = b.Learn(ctx, resp.StatusCode, resp.Header) // without Redis this process heeds it all the same
	}
	cost = c.p.cost(req, resp)
	if resp.StatusCode == http.StatusSwitchingProtocols || resp.Body == http.NoBody {
		return resp, nil // the body must keep its type, or has no end to wait for
	}
	over = false
	settle := sync.OnceFunc(func() { expense.Settle(cost) })
	// The call ends with its context, even if the body is not closed.
	untie := context.AfterFunc(ctx, settle)
	resp.Body = &paidBody{ReadCloser: resp.Body, settle: func() { untie(); settle() }}
	return resp, nil
}

// callBase calls the base transport and notes the time. A response without a Body gets one,
// as in an http.Client, and field names their canonical spelling.
func (t *Transport) callBase(c attempt, req *http.Request) (*http.Response, error) {
	if c.sent != nil {
		*c.sent = time.Now()
	}
	resp, err := t.opts.Base.RoundTrip(req)
	switch {
	case err != nil:
		return nil, err
	case resp == nil:
		return nil, fmt.Errorf("transport: the base transport (%T) returned neither a response nor an error", t.opts.Base)
	case resp.Body != nil:
	case resp.ContentLength > 0 && req.Method != http.MethodHead:
		return nil, fmt.Errorf("transport: the base transport (%T) returned a response of %d bytes without a Body", t.opts.Base, resp.ContentLength)
	default:
		resp.Body = http.NoBody
	}
	for name := range resp.Header {
		if http.CanonicalHeaderKey(name) != name {
			resp.Header = httpcache.CanonicalHeader(resp.Header)
			break
		}
	}
	return resp, nil
}

func (p *HostPolicy) cost(req *http.Request, resp *http.Response) int {
	if p.Cost == nil {
		return 1
	}
	return max(p.Cost(req, resp), 0)
}

// errDeserted ends the wait for a budget of a call that no request waits for.
var errDeserted = errors.New("transport: no request waits for the call any more")

// spend pays for a call. It waits for the budget while a request waits for the call, and
// not beyond the deadline of the client's request if no other request waits.
func (c attempt) spend(ctx context.Context, cost int) (guard.Expense, error) {
	s := guard.Spending{Cost: cost, Priority: c.p.Priority, MaxWait: c.p.MaxBudgetWait, MaxHold: maxHold}
	switch {
	case c.waiters != nil && c.waiters.isRefresh():
		s.Priority, s.MaxWait = guard.Background, 0
	case c.now:
		s.MaxWait = 0
	case c.waiters != nil:
		if end, ok := c.waiters.deadline(); ok {
			s.MaxWait = min(s.MaxWait, time.Until(end))
		}
	}
	if end, ok := ctx.Deadline(); ok {
		s.MaxWait = min(s.MaxWait, time.Until(end))
	}
	s.MaxWait = max(s.MaxWait, 0)
	if s.MaxWait == 0 || c.waiters == nil {
		return c.p.Budget.Spend(ctx, s)
	}
	wanted, stop := c.waiters.whileWanted(ctx)
	defer stop()
	x, err := c.p.Budget.Spend(wanted, s)
	if err != nil && wanted.Err() != nil && ctx.Err() == nil {
		err = errDeserted
	}
	return x, err
}

// A paidBody settles a call's expense when the body ends or is closed.
type paidBody struct {
	io.ReadCloser
	settle func()
}

// Read implements [io.Reader].
func (b *paidBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.settle()
	}
	return n, err
}

// Close implements [io.Closer].
func (b *paidBody) Close() error {
	b.settle()
	return b.ReadCloser.Close()
}
