package budget

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// Learn takes in what an upstream says with a response: see [Advise]. What it
// says lowers what the fleet may spend, and never raises it. It returns what it
// has understood; for most responses that is nothing, and Redis isn't asked.
//
// Errors: of Redis, which is away then; this process heeds the advice all the
// same, for its share of what is left.
func (b *Budget) Learn(ctx context.Context, status int, header http.Header) (Advice, error) {
	a := Advise(status, header, time.Now())
	return a, b.Heed(ctx, a)
}

// Heed does what an upstream advises, in the whole fleet, for Options.MaxPause at
// the most. Errors as of Learn.
func (b *Budget) Heed(ctx context.Context, a Advice) error {
	if ctx == nil {
		return errNilContext
	}
	a.Pause = min(a.Pause, b.opts.MaxPause)
	a.Reset = min(a.Reset, b.opts.MaxPause)
	if a.Pause <= 0 && a.Remaining < 0 {
		return nil
	}
	most := float64(b.limit.Burst) + b.limit.rate()*float64(a.Reset.Microseconds())
	if a.Pause <= 0 && float64(a.Remaining) >= most {
		return nil // it allows more than the limit does until then
	}
	return b.learn(ctx, max(a.Pause, 0), min(a.Remaining, maxUnits), max(a.Reset, 0))
}

// Pause grants nothing in the whole fleet before d has passed, at most
// Options.MaxPause. A pause that is longer already stays. Errors as of Learn.
func (b *Budget) Pause(ctx context.Context, d time.Duration) error {
	return b.Heed(ctx, Advice{Pause: d, Remaining: -1})
}

// Resume is the operator's: it ends a pause, and forgets what the upstream said.
// Other processes may go on believing a refusal for a quarter of a second. Errors
// as of Learn.
func (b *Budget) Resume(ctx context.Context) error {
	if ctx == nil {
		return errNilContext
	}
	defer b.forget()
	b.mu.Lock()
	b.unsaid = time.Time{}
	b.local.unlearn()
	b.mu.Unlock()
	return b.tell(ctx, -1, -1, 0)
}

func (b *Budget) learn(ctx context.Context, pause time.Duration, remaining int, reset time.Duration) error {
	still := pause
	if remaining == 0 {
		still = max(still, reset)
	}
	if still > b.Known().Paused {
		b.observe(cache.Event{Kind: cache.BudgetPaused, Duration: still})
	}
	err := b.tell(ctx, pause.Microseconds(), remaining, reset.Microseconds())
	if err != nil && still > 0 {
		b.pauseHere(time.Now(), still)
	}
	if err != nil && remaining >= 0 {
		b.local.learn(time.Now(), remaining, reset)
	}
	return err
}

// pauseHere keeps a pause that Redis could not be told of, until it can be.
func (b *Budget) pauseHere(now time.Time, d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if end := now.Add(d); end.After(b.unsaid) {
		b.unsaid = end
	}
	b.local.pause(now, max(b.unsaid.Sub(now), b.pausedLocked(now)))
}

// sayPause tells Redis of such a pause.
func (b *Budget) sayPause() error {
	b.mu.Lock()
	end := b.unsaid
	b.mu.Unlock()
	left := time.Until(end)
	if left <= 0 {
		return nil
	}
	r, err := b.callLearn(b.ctx, left.Microseconds(), -1, 0)
	if err != nil {
		return err
	}
	b.heard(r)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unsaid.Equal(end) { // else there is a longer one by now
		b.unsaid = time.Time{}
	}
	return nil
}

// errAway: it is not the time to ask.
var errAway = errors.New("budget: Redis is away")

func (b *Budget) tell(ctx context.Context, pause int64, remaining int, reset int64) error {
	if b.isAway() {
		return errAway
	}
	// It is for the fleet, also if the request that was answered has gone.
	r, err := b.callLearn(context.WithoutCancel(ctx), pause, remaining, reset)
	if errors.Is(err, ErrClosed) {
		return err
	}
	if err != nil {
		b.wentAway(err)
		return err
	}
	b.heard(r)
	return nil
}

func (b *Budget) callLearn(ctx context.Context, pause int64, remaining int, reset int64) (report, error) {
	return b.call(ctx, learnScript, []string{b.names.state}, []any{b.rate(), b.limit.Burst, pause, remaining, reset}, nil)
}
