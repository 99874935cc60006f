package middleware

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/callers"
)

// learns is what a [budget.Budget] does beyond guard.Budget.
type learns interface {
	Learn(ctx context.Context, status int, header http.Header) (budget.Advice, error)
}

// trMaxHold is how long a call may at most count as under way. It is no bound on
// calls: they end with their body, or with their request's context, and FetchTimeout
// is for few of them. It is for bodies that somebody has forgotten.
const trMaxHold = 24 * time.Hour

// call makes one call, and pays for it.
func (t *Transport) call(ctx context.Context, c trCall, req *http.Request) (*http.Response, error) {
	if c.p.Budget == nil {
		return t.roundTrip(c, req)
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
			expense.Settle(cost) // it may have got there, also if something panicked
		}
	}()
	resp, err := t.roundTrip(c, req)
	if err != nil {
		return nil, err
	}
	if b, ok := c.p.Budget.(learns); ok {
		_, _ = b.Learn(ctx, resp.StatusCode, resp.Header) // with Redis away this process heeds it all the same
	}
	cost = c.p.cost(req, resp)
	if resp.StatusCode == http.StatusSwitchingProtocols || resp.Body == http.NoBody {
		return resp, nil // the body has to stay what it is, or says nothing
	}
	over = false
	settle := sync.OnceFunc(func() { expense.Settle(cost) })
	// The call ends with its context, whether or not somebody closes the body then.
	untie := context.AfterFunc(ctx, settle)
	resp.Body = &trPaid{ReadCloser: resp.Body, settle: func() { untie(); settle() }}
	return resp, nil
}

// roundTrip makes one call, and notes when. A response that has no Body is taken as
// an http.Client takes it, and names of fields are spelled as the rules look for them.
func (t *Transport) roundTrip(c trCall, req *http.Request) (*http.Response, error) {
	if c.sent != nil {
		*c.sent = time.Now()
	}
	resp, err := t.opts.Base.RoundTrip(req)
	switch {
	case err != nil:
		return nil, err
	case resp == nil:
		return nil, fmt.Errorf("middleware: the base transport (%T) returned neither a response nor an error", t.opts.Base)
	case resp.Body != nil:
	case resp.ContentLength > 0 && req.Method != http.MethodHead:
		return nil, fmt.Errorf("middleware: the base transport (%T) returned a response of %d bytes without a Body", t.opts.Base, resp.ContentLength)
	default:
		resp.Body = http.NoBody
	}
	for name := range resp.Header {
		if http.CanonicalHeaderKey(name) != name {
			resp.Header = canonical(resp.Header)
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

// spend pays for a call, waiting for it as long as it is of use to somebody.
func (c trCall) spend(ctx context.Context, cost int) (guard.Expense, error) {
	s := guard.Spending{Cost: cost, Priority: c.p.Priority, MaxWait: c.p.MaxBudgetWait, MaxHold: trMaxHold}
	switch {
	case c.callers != nil && c.callers.Background():
		s.Priority, s.MaxWait = guard.Background, 0
	case c.now:
		s.MaxWait = 0
	case c.callers != nil && !c.deadline.IsZero() && c.callers.Lone():
		s.MaxWait = min(s.MaxWait, time.Until(c.deadline))
	}
	if end, ok := ctx.Deadline(); ok {
		s.MaxWait = min(s.MaxWait, time.Until(end))
	}
	s.MaxWait = max(s.MaxWait, 0)
	if s.MaxWait == 0 || c.callers == nil {
		return c.p.Budget.Spend(ctx, s)
	}
	ctx, stop := callers.WhileWanted(ctx, nil, c.callers.Deserted)
	defer stop()
	return c.p.Budget.Spend(ctx, s)
}

// trPaid is the body of a call that is over when it has ended or is closed.
type trPaid struct {
	io.ReadCloser
	settle func()
}

func (b *trPaid) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.settle()
	}
	return n, err
}

func (b *trPaid) Close() error {
	b.settle()
	return b.ReadCloser.Close()
}

// retryAfterOf is how long a response says that its upstream is to be left alone:
// by Retry-After, or as nothing is left of a quota until it is renewed.
func retryAfterOf(h http.Header, now time.Time) (time.Duration, bool) {
	// A 403 is not believed to mean more than it says.
	a := budget.Advise(http.StatusForbidden, h, now)
	if a.Pause == 0 && a.Remaining == 0 {
		a.Pause = a.Reset
	}
	return a.Pause, a.Pause > 0
}
