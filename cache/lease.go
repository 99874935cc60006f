package cache

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// failureKept is how long Redis keeps why a fetch failed, for a waiter that
// missed the wake-up: longer than any waiter's poll.
const failureKept = 5 * time.Second

// unsubscribedWait is the pause before asking again after Redis did not see this
// process's subscription.
const unsubscribedWait = 5 * time.Millisecond

// Acquire implements [Store]. It resends an acquire that was not answered once,
// with a new token, unless Ask.Once is set; waits for this process's own
// subscription where Redis doesn't see it; and replaces a lease of this process
// whose grant was never answered. All of that together may take a few times
// RedisTimeout.
func (s *Redis) Acquire(ctx context.Context, key string, ask Ask) (Answer, error) {
	var (
		over     Token
		resent   bool
		deadline = time.Now().Add(s.opts.RedisTimeout)
	)
	for {
		if s.closing.Load() {
			return Answer{}, ErrClosed
		}
		asked := time.Now()
		answer, err := s.acquireOnce(ctx, key, &ask, over)
		switch {
		case errors.Is(err, errUnsubscribed):
			if err := s.awaitSubscription(ctx, key, asked, deadline); err != nil {
				return Answer{}, err
			}
		case errors.Is(err, ErrUnavailable) && !resent && !ask.Once && ended(ctx) == nil && !errors.Is(err, errBreakerOpen):
			resent = true
		case err != nil:
			return Answer{}, err
		case answer.Verdict == HasEntry && answer.Reading.tagged():
			if errs := s.checkTags(ctx, []*Reading{answer.Reading}); errs[0] != nil {
				return Answer{}, fmt.Errorf("the entry's tags: %w", errs[0])
			}
			return answer, nil
		case answer.Verdict == Held && over.IsZero() && answer.Holder.Process() == s.minter.Process() && s.ledger.orphan(answer.Holder):
			over = answer.Holder
		default:
			return answer, nil
		}
	}
}

// awaitSubscription waits, after an acquire that was sent at the time asked, until it is
// worth asking again, and for no longer than the deadline allows. Redis did not see this
// process's subscription.
func (s *Redis) awaitSubscription(ctx context.Context, key string, asked, deadline time.Time) error {
	n, err := s.topo.node(s.keys.names(key).wake)
	if err != nil {
		return err
	}
	n.sub.unsubscribed(asked)
	if !s.liveness.on.Load() {
		return nil // the next acquire does without
	}
	until := n.sub.patience(deadline)
	if time.Now().After(until) {
		n.sub.doubt(deadline.Add(-s.opts.RedisTimeout))
		return n.explain(errUnsubscribed)
	}
	if err := n.sub.awaitReady(ctx, time.Until(until)); err != nil {
		return n.explain(err)
	}
	// The subscription may be confirmed and still not be seen: no busy loop.
	if sleep(ctx, unsubscribedWait) != nil {
		return ended(ctx)
	}
	return nil
}

// errUnsubscribed: Redis doesn't see this process's own liveness channel.
var errUnsubscribed = fmt.Errorf("%w: the subscription of this process is not live", ErrUnavailable)

// acquireOnce sends one acquire with a token of its own.
func (s *Redis) acquireOnce(ctx context.Context, key string, ask *Ask, over Token) (Answer, error) {
	token := s.minter.Token()
	names := s.keys.words(key)
	inv := s.acquiring(names, token, ask, over)
	s.ledger.ask(token, key, ask)
	sent := time.Now()
	value, fate, err := s.order(ctx, "acquire", inv, func(late reply) {
		// Nobody waits for this answer any more: a grant is an orphan.
		switch answer, err := late.acquired(); {
		case answer.Verdict == Granted:
			_ = s.release(context.Background(), key, token)
		case err == nil:
			s.ledger.forget(token)
		}
	})
	if fate == notSent {
		s.ledger.forget(token)
		return Answer{}, err
	}
	var answer Answer
	if err == nil {
		answer, err = reply{value: value}.acquired()
	}
	if answer.Lease != nil {
		answer.Lease.names = names
	}
	return s.entered(token, key, ask, sent, answer, err)
}

// acquired is the answer to an acquire.
func (r reply) acquired() (Answer, error) {
	if r.err != nil {
		return Answer{}, classify("acquire", r.err)
	}
	answer, err := parseAcquire(r.value)
	return answer, classify("acquire", err)
}

// acquiring is one acquire, to be sent.
func (s *Redis) acquiring(names *nameWords, token Token, ask *Ask, over Token) invocation {
	return acquireScript.invoke(6,
		names.entry, names.lease, names.tries, names.pause, names.failed(ask.LastHeld), names.failures,
		token[:], ask.TTL.Milliseconds(), ask.Seen, optional(ask.LastHeld), optional(ask.Suspect), optional(over),
		ask.MaxAttempts, ask.Window.Milliseconds(), s.aliveWord, s.livenessArg())
}

// entered takes the answer to an acquire that was sent into the ledger, and
// returns what of it its caller is told.
func (s *Redis) entered(token Token, key string, ask *Ask, sent time.Time, answer Answer, err error) (Answer, error) {
	if answer.Reading != nil {
		answer.Reading.lay(time.Since(sent), s.opts.RedisTimeout)
		s.stored(s.keys.entry(key))
	}
	switch {
	case err != nil && !errors.Is(err, ErrRefused):
		s.ledger.leave(token)
		return Answer{}, err
	case err != nil || answer.Verdict != Granted:
		s.ledger.forget(token)
		if answer.Verdict == verdictUnsubscribed {
			return Answer{}, errUnsubscribed
		}
		return answer, err
	}
	answer.Lease.Key, answer.Lease.Token = key, token
	if !s.ledger.grant(answer.Lease, sent, ask.RenewFor) {
		return Answer{}, ErrClosed // which has released it
	}
	return answer, nil
}

func optional(t Token) []byte {
	if t.IsZero() {
		return nil
	}
	return t[:]
}

func (s *Redis) livenessArg() int {
	if s.liveness.on.Load() {
		return 1
	}
	return 0
}

// verdictUnsubscribed is answered by the script and never by a Store.
const verdictUnsubscribed Verdict = 255

// parseAcquire reads the replies that acquire.lua lists.
func parseAcquire(reply any) (Answer, error) {
	r := replies{reply: reply}
	switch word := r.text(0); word {
	case "entry":
		return Answer{Verdict: HasEntry, Reading: newReading([]byte(r.text(1)), r.number(2))}, r.err
	case "failed":
		return Answer{Verdict: Failed, Failure: []byte(r.text(1))}, r.err
	case "paused":
		return Answer{Verdict: Paused, Failure: []byte(r.text(1)), TTL: r.millis(2)}, r.err
	case "unsubscribed":
		return Answer{Verdict: verdictUnsubscribed}, r.err
	case "held":
		return Answer{Verdict: Held, Holder: r.token(1), TTL: r.millis(2), Unwatched: r.number(3) == 1}, r.err
	case "quarantined":
		return Answer{Verdict: Quarantined, TTL: r.millis(1)}, r.err
	case "granted":
		lease := NewLease("", Token{})
		lease.TakenOver, lease.Attempt, lease.Failures = r.number(1) == 1, int(r.number(2)), int(r.number(3))
		return Answer{Verdict: Granted, Lease: lease}, r.err
	default:
		return Answer{}, fmt.Errorf("%w: acquire answered %q", ErrDamaged, word)
	}
}

// replies reads the fields of a script's array reply and keeps the first error.
type replies struct {
	reply any
	err   error
}

func (r *replies) field(i int) any {
	all, ok := r.reply.([]any)
	if !ok || i >= len(all) {
		r.err = errors.Join(r.err, fmt.Errorf("%w: reply %T has no field %d", ErrDamaged, r.reply, i))
		return nil
	}
	return all[i]
}

func (r *replies) text(i int) string {
	s, _ := r.field(i).(string)
	return s
}

func (r *replies) number(i int) int64 {
	n, _ := r.field(i).(int64)
	return n
}

func (r *replies) millis(i int) time.Duration {
	return time.Duration(max(0, r.number(i))) * time.Millisecond
}

func (r *replies) token(i int) Token {
	s := r.text(i)
	if len(s) != TokenSize {
		r.err = errors.Join(r.err, fmt.Errorf("%w: token of %d bytes", ErrDamaged, len(s)))
		return Token{}
	}
	return Token([]byte(s))
}
