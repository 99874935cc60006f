package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// Acquire implements [store.Store]: one pipeline on each node for every 2000 keys. An
// acquire that was not answered is sent once more with a new token, unless Request.Once is
// set. An acquire that found this process's own subscription missing waits for it. A lease
// of this process is replaced if its grant was never answered. All of that may take a few
// times RedisTimeout.
func (s *leases) Acquire(ctx context.Context, requests []store.Request) []store.Answer {
	if len(requests) == 1 {
		answers := []store.Answer{s.acquireFully(ctx, &requests[0])}
		s.checkAnswers(ctx, answers)
		return answers
	}
	answers := make([]store.Answer, len(requests))
	places := make([]int, len(requests))
	for i := range places {
		places[i] = i
	}
	// A key without a plain answer is asked for by itself. The first of them finds out
	// whether the rest can be answered at all.
	if again := s.acquireTogether(ctx, requests, places, answers); len(again) > 0 {
		first := again[0]
		answers[first] = s.acquireFully(ctx, &requests[first])
		if err := answers[first].Err; err != nil && isHopeless(err) {
			for _, i := range again {
				answers[i] = store.Answer{Err: err}
			}
		} else {
			s.acquireSingly(ctx, requests, s.acquireTogether(ctx, requests, again[1:], answers), answers)
		}
	}
	s.checkAnswers(ctx, answers)
	return answers
}

// isHopeless reports whether an error is that of all keys of a node.
func isHopeless(err error) bool {
	return errors.Is(err, errUnsubscribed) || errors.Is(err, errBreakerOpen) || errors.Is(err, errTimeout) ||
		errors.Is(err, store.ErrClosed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// singly is how many keys are asked for one by one at once.
const singly = 16

func (s *leases) acquireSingly(ctx context.Context, requests []store.Request, places []int, answers []store.Answer) {
	limit := make(chan struct{}, singly)
	var wg sync.WaitGroup
	for _, i := range places {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			answers[i] = s.acquireFully(ctx, &requests[i])
		})
	}
	wg.Wait()
}

// acquireTogether sends the acquires of some places in pipelines, each with a token of its
// own. It returns the places that have no plain answer.
func (s *leases) acquireTogether(ctx context.Context, requests []store.Request, places []int, answers []store.Answer) (again []int) {
	if s.closing.Load() {
		for _, i := range places {
			answers[i].Err = store.ErrClosed
		}
		return nil
	}
	names := make([]string, len(places))
	for j, i := range places {
		names[j] = s.names.entry(requests[i].Key)
	}
	asked := make([]*asking, len(places))
	xs := s.exchange(ctx, names, nil, func(j int, err error) { answers[places[j]].Err = err }, func(n *node, some []int) (*queue, *request) {
		all := make([]invocation, len(some))
		for k, j := range some {
			asked[j] = s.ask(&requests[places[j]], store.Token{})
			all[k] = asked[j].inv
		}
		return n.scripts, scriptRequest(lateFunc(func(late []reply) {
			s.answeredLate(late, func(k int) *asking { return asked[some[k]] })
		}), all...)
	})
	for _, x := range xs {
		fate, err := x.await(ctx)
		for k, j := range x.places {
			i := places[j]
			if fate == gotAnswer && err == nil {
				answers[i] = s.entered(asked[j], classified(x.n, "acquire", x.r.scripts.replies[k]))
			} else {
				answers[i] = s.unanswered(asked[j], fate, err)
			}
			if s.isUnsettled(ctx, &answers[i]) {
				again = append(again, i)
			}
		}
	}
	return again
}

// isUnsettled reports whether acquireFully knows something to do about an answer.
func (s *leases) isUnsettled(ctx context.Context, a *store.Answer) bool {
	if store.Ended(ctx) != nil {
		return false
	}
	if a.Err != nil {
		return errors.Is(a.Err, store.ErrUnavailable) && !errors.Is(a.Err, errBreakerOpen)
	}
	return s.isOwnOrphan(a)
}

// isOwnOrphan reports whether the lease is held by a token of this process that no caller
// uses: its grant was never answered.
func (s *leases) isOwnOrphan(a *store.Answer) bool {
	return a.Verdict == store.Held && a.Holder.Process() == s.minter.Process() && s.ledger.orphan(a.Holder)
}

// acquireFully asks for one key until there is an answer that needs nothing more.
func (s *leases) acquireFully(ctx context.Context, r *store.Request) store.Answer {
	var over store.Token
	resent := false
	deadline := time.Now().Add(s.opts.RedisTimeout)
	for {
		if s.closing.Load() {
			return store.Answer{Err: store.ErrClosed}
		}
		asked := time.Now()
		a := s.acquireOnce(ctx, r, over)
		switch {
		case errors.Is(a.Err, errUnsubscribed):
			err := s.watches.awaitSubscription(ctx, r.Key, asked, deadline)
			if s.closing.Load() {
				err = store.ErrClosed // it has left its liveness channel
			}
			if err != nil {
				return store.Answer{Err: err}
			}
		case errors.Is(a.Err, store.ErrUnavailable) && !resent && !r.Once && store.Ended(ctx) == nil && !errors.Is(a.Err, errBreakerOpen):
			resent = true
		case over.IsZero() && s.isOwnOrphan(&a):
			over = a.Holder
		default:
			return a
		}
	}
}

// acquireOnce sends one acquire.
func (s *leases) acquireOnce(ctx context.Context, r *store.Request, over store.Token) store.Answer {
	q := s.ask(r, over)
	value, fate, err := s.callIn(&q.call, ctx, "acquire", q.inv, q)
	if fate != gotAnswer {
		return s.unanswered(q, fate, err)
	}
	return s.entered(q, reply{value, err})
}

// An asking is an acquire with its token, on its way. All that it needs is one allocation,
// but for the names.
type asking struct {
	s        *leases
	r        store.Request
	token    store.Token
	names    names
	inv      invocation
	sent     time.Time
	record   record
	lease    store.Lease
	call     scriptCall // of an acquire that goes alone
	words    [firstKey + 6 + 13]any
	tokenArg bytesArg

	ttl, window int64
}

// ask prepares an acquire and notes its token: the grant may come whatever happens.
func (s *leases) ask(r *store.Request, over store.Token) *asking {
	q := &asking{s: s, r: *r, token: s.minter.Token(), sent: time.Now()}
	q.names.set(s.names, r.Key)
	q.ttl, q.window, q.tokenArg = r.TTL.Milliseconds(), r.Window.Milliseconds(), q.token[:]
	q.inv = acquireScript.invokeIn(q.words[:0], 6,
		&q.names.entry, &q.names.lease, &q.names.tries, &q.names.pause, q.names.failed(r.LastHeld), &q.names.failures,
		&q.tokenArg, &q.ttl, r.Seen, optional(r.LastHeld), optional(r.Suspect), optional(over),
		r.MaxAttempts, &q.window, (*keyArg)(&s.alive), s.watches.livenessArg(), &q.names.wake, s.publish(), flag(r.Brief))
	q.record = record{token: q.token, key: r.Key, state: asked, ttl: r.TTL, window: r.Window}
	s.ledger.ask(&q.record)
	return q
}

// answeredLate implements [lateReader].
func (q *asking) answeredLate(late []reply) {
	q.s.answeredLate(late, func(int) *asking { return q })
}

// livenessWord is where livenessArg stands among the words of an acquire.
const livenessWord = firstKey + 6 + 9

// unanswered accounts for an acquire that got no answer.
func (s *leases) unanswered(q *asking, fate fate, err error) store.Answer {
	if fate == notSent {
		s.ledger.forget(q.token)
	} else {
		s.ledger.leave(q.token)
	}
	return store.Answer{Err: err}
}

// answeredLate accounts for answers that no caller waits for any more. A granted lease is
// returned, by a goroutine: that may have to wait for the sender that calls this.
func (s *leases) answeredLate(late []reply, asking func(i int) *asking) {
	var orphans []store.Return
	for i, r := range late {
		q := asking(i)
		switch a := parseAcquire(r.value, &q.lease); {
		case r.err != nil || a.Err != nil:
		case a.Verdict == store.Granted:
			orphans = append(orphans, store.Return{Lease: q.leased()})
		default:
			s.ledger.forget(q.token)
		}
	}
	if len(orphans) > 0 {
		s.spawn(func() { s.Return(context.Background(), orphans) })
	}
}

// classified is a reply with its error classified.
func classified(n *node, op string, r reply) reply { return reply{r.value, n.classify(op, r.err)} }

// entered takes the answer to an acquire into the ledger and returns the caller's answer.
func (s *leases) entered(q *asking, r reply) store.Answer {
	a := store.Answer{Err: r.err}
	if r.err == nil {
		a = parseAcquire(r.value, &q.lease)
	}
	switch {
	case a.Err != nil && !errors.Is(a.Err, store.ErrRefused):
		s.ledger.leave(q.token)
		return store.Answer{Err: a.Err}
	case a.Err != nil || a.Verdict != store.Granted:
		s.ledger.forget(q.token)
		if a.Verdict == verdictUnsubscribed {
			return store.Answer{Err: errUnsubscribed}
		}
		return a
	}
	if !s.ledger.grant(q.leased(), q.sent, q.r.RenewFor) {
		return store.Answer{Err: store.ErrClosed} // Close has released it
	}
	return a
}

// leased is the lease that was granted.
func (q *asking) leased() *store.Lease {
	q.lease.Key, q.lease.Token, q.lease.Names = q.r.Key, q.token, &q.names
	return &q.lease
}

// checkAnswers checks the tags of the entries that were answered.
func (s *leases) checkAnswers(ctx context.Context, answers []store.Answer) {
	var places []int
	var readings []*store.Reading
	for i := range answers {
		if a := &answers[i]; a.Verdict == store.HasEntry && a.Reading.Tagged() {
			places, readings = append(places, i), append(readings, a.Reading)
		}
	}
	for j, err := range s.tags.checkTags(ctx, readings) {
		if err != nil {
			answers[places[j]] = store.Answer{Err: err}
		}
	}
}

// verdictUnsubscribed is answered by the script and never by a Store.
const verdictUnsubscribed store.Verdict = 255

// parseAcquire reads the replies that acquire.lua lists, with memory for a lease.
func parseAcquire(value any, lease *store.Lease) store.Answer {
	f := fields{reply: value}
	var a store.Answer
	if tries, ok := value.(int64); ok {
		a.Verdict, a.Lease, lease.Attempt = store.Granted, lease, int(tries)
		return a
	}
	switch word := f.text(0); word {
	case "entry":
		a.Verdict, a.Reading = store.HasEntry, &store.Reading{}
		now := store.Instant(f.decimal(2))*1e6 + store.Instant(f.decimal(3))
		a.Reading.Parse(bytesOf(f.text(1)), now)
	case "failed":
		a.Verdict, a.Failure = store.Failed, []byte(f.text(1))
	case "paused":
		a.Verdict, a.Failure, a.TTL = store.Paused, []byte(f.text(1)), f.millis(2)
	case "unsubscribed":
		a.Verdict = verdictUnsubscribed
	case "held":
		a.Verdict, a.Holder, a.TTL, a.Unwatched, a.Waiting = store.Held, f.token(1), f.millis(2), f.number(3) == 1, int(f.number(4))
	case "quarantined":
		a.Verdict, a.TTL = store.Quarantined, f.millis(1)
	case "granted":
		a.Verdict, a.Lease = store.Granted, lease
		lease.TakenOver, lease.Attempt, lease.Failures = f.number(1) == 1, int(f.number(2)), int(f.number(3))
	default:
		f.err = errors.Join(f.err, fmt.Errorf("%w: acquire answered %q", store.ErrDamaged, word))
	}
	if f.err != nil {
		return store.Answer{Err: fmt.Errorf("%w: %w", store.ErrRefused, f.err)}
	}
	return a
}
