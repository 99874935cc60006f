package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// AcquireMany implements [Store]: one pipeline on each node for every 2000 keys.
// A key that isn't answered plainly there (this process's own subscription isn't
// seen, its slot is on the move, no answer came) is asked for by Acquire.
func (s *Redis) AcquireMany(ctx context.Context, requests []Request) []Acquired {
	all := make([]Acquired, len(requests))
	leases := make([]string, len(requests))
	for i := range requests {
		leases[i] = s.keys.names(requests[i].Key).lease
	}
	s.onNodes(leases, func(i int, err error) { all[i].Err = err }, func(n *node, places []int) {
		for _, part := range chunks(places, nil) {
			if rest, heard := s.acquirePart(ctx, n, requests, part, all); len(rest) > 0 {
				s.acquireRest(ctx, n, requests, rest, heard, all)
			}
		}
	})
	s.checkAcquired(ctx, all)
	return all
}

// checkAcquired checks the tags of the entries that were answered.
func (s *Redis) checkAcquired(ctx context.Context, all []Acquired) {
	readings := make([]*Reading, len(all))
	for i := range all {
		if a := &all[i].Answer; a.Verdict == HasEntry {
			readings[i] = a.Reading
		}
	}
	for i, err := range s.checkTags(ctx, readings) {
		if err != nil {
			all[i] = Acquired{Err: fmt.Errorf("the entry's tags: %w", err)}
		}
	}
}

// acquireSingly is how many keys of a batch are asked for one by one at once.
const acquireSingly = 16

// acquireRest asks for the keys whose answer wasn't plain. The first goes by
// itself: it waits for what there is to be waited for, and finds out whether the
// node answers at all. heard says that it has.
func (s *Redis) acquireRest(ctx context.Context, n *node, requests []Request, rest []int, heard bool, all []Acquired) {
	singly := func(i int) { all[i].Answer, all[i].Err = s.Acquire(ctx, requests[i].Key, requests[i].Ask) }
	first := rest[0]
	singly(first)
	if rest = rest[1:]; len(rest) == 0 {
		return
	}
	err := all[first].Err
	hopeless := errors.Is(err, errUnsubscribed) || errors.Is(err, errBreakerOpen) || !heard && !errors.Is(err, ErrRefused)
	if err != nil && (hopeless || ended(ctx) != nil) {
		for _, i := range rest {
			all[i] = Acquired{Err: err}
		}
		return
	}
	rest, _ = s.acquirePart(ctx, n, requests, rest, all)
	limit := make(chan struct{}, acquireSingly)
	var wg sync.WaitGroup
	for _, i := range rest {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			singly(i)
		})
	}
	wg.Wait()
}

// acquirePart sends one pipeline of acquires, each with a token of its own, and
// takes their answers in. It returns the places of those that have to be asked
// for again, and whether the node has answered anything.
func (s *Redis) acquirePart(ctx context.Context, n *node, requests []Request, part []int, all []Acquired) (rest []int, heard bool) {
	if s.closing.Load() {
		for _, i := range part {
			all[i].Err = ErrClosed
		}
		return nil, false
	}
	tokens := make([]Token, len(part))
	invs := make([]invocation, len(part))
	for j, i := range part {
		r := &requests[i]
		tokens[j] = s.minter.Token()
		invs[j] = s.acquiring(s.keys.words(r.Key), tokens[j], &r.Ask, Token{})
		s.ledger.ask(tokens[j], r.Key, &r.Ask)
	}
	var h handoff[[]Acquired]
	sent := time.Now()
	err := s.doWithin(ctx, n, "acquire", s.manyTimeout(len(part)), func(callCtx context.Context) error {
		return h.carryOut(
			func() ([]Acquired, error) {
				replies, err := s.runMany(callCtx, invs)
				return parseAcquires(replies), err
			},
			func(late []Acquired, _ error) { s.acquiredLate(requests, part, tokens, late) })
	})
	answers, fate := h.settle()
	for j, i := range part {
		r := &requests[i]
		switch fate {
		case notSent:
			s.ledger.forget(tokens[j])
			all[i] = Acquired{Err: err}
		case noAnswer:
			s.ledger.leave(tokens[j])
			all[i] = Acquired{Err: err}
		default:
			a, err := s.entered(tokens[j], r.Key, &r.Ask, sent, answers[j].Answer, n.explain(answers[j].Err))
			all[i] = Acquired{a, err}
			heard = heard || answers[j].Err == nil
		}
		if s.askAgain(ctx, &all[i]) {
			rest = append(rest, i)
		}
	}
	return rest, heard
}

// askAgain reports whether an answer is one that Acquire knows what to do about.
func (s *Redis) askAgain(ctx context.Context, a *Acquired) bool {
	if ended(ctx) != nil {
		return false
	}
	if a.Err != nil {
		return errors.Is(a.Err, ErrUnavailable) && !errors.Is(a.Err, errBreakerOpen)
	}
	return a.Answer.Verdict == Held && a.Answer.Holder.Process() == s.minter.Process() && s.ledger.orphan(a.Answer.Holder)
}

// acquiredLate deals with answers that nobody waits for any more: grants are
// orphans.
func (s *Redis) acquiredLate(requests []Request, part []int, tokens []Token, late []Acquired) {
	var orphans []Return
	for j, i := range part {
		switch {
		case late[j].Answer.Verdict == Granted:
			l := late[j].Answer.Lease
			l.Key, l.Token = requests[i].Key, tokens[j]
			orphans = append(orphans, Return{Lease: l})
		case late[j].Err == nil:
			s.ledger.forget(tokens[j])
		}
	}
	if len(orphans) > 0 {
		s.ReturnMany(context.Background(), orphans)
	}
}

func parseAcquires(replies []reply) []Acquired {
	all := make([]Acquired, len(replies))
	for i, r := range replies {
		all[i].Answer, all[i].Err = r.acquired()
	}
	return all
}

// ReturnMany implements [Store]: one pipeline on each node for every 2000
// leases, or every 4 MiB of entries. In the pipelines it sends again only what was
// certainly not carried out. Leases that Redis does not answer for are given back again
// in the background, each by itself.
func (s *Redis) ReturnMany(ctx context.Context, returns []Return) []Returned {
	all := make([]Returned, len(returns))
	start := time.Now()
	tied, refused := s.tieReturns(ctx, returns)
	send := make([]int, 0, len(tied))
	leases := make([]string, 0, len(tied))
	for i := range tied {
		if err := refused[i]; s.unanswered(err) {
			r := &returns[i]
			s.gaveBack(r, err, start, s.ledger.give(r.Lease.Token))
			continue
		}
		send, leases = append(send, i), append(leases, s.keys.names(tied[i].Lease.Key).lease)
	}
	size := func(i int) int {
		if e := tied[i].Entry; e != nil {
			return len(e.Payload)
		}
		return len(tied[i].Failure)
	}
	s.onNodes(leases, func(j int, err error) {
		s.ledger.leave(tied[send[j]].Lease.Token)
		all[send[j]].Err = err
	}, func(n *node, places []int) {
		for j := range places {
			places[j] = send[places[j]]
		}
		for _, part := range chunks(places, size) {
			s.returnPart(ctx, n, tied, part, all)
		}
	})
	for i, err := range refused {
		all[i] = Returned{Err: err}
	}
	return all
}

// tieReturns ties the entries to be stored that carry tags. A lease whose entry
// can't be is to be released: those returns are others, and why is in refused.
func (s *Redis) tieReturns(ctx context.Context, returns []Return) (_ []Return, refused map[int]error) {
	entries := make([]*Entry, len(returns))
	for i := range returns {
		entries[i] = returns[i].Entry
	}
	for i, err := range s.tie(ctx, entries...) {
		if err == nil {
			continue
		}
		if refused == nil {
			refused = map[int]error{}
			returns = slices.Clone(returns)
		}
		refused[i] = err
		returns[i].Entry = nil
	}
	return returns, refused
}

func (s *Redis) returnPart(ctx context.Context, n *node, returns []Return, part []int, all []Returned) {
	start := time.Now()
	ttls := make(map[int]time.Duration, len(part))
	invs := make([]invocation, 0, len(part))
	sent := make([]int, 0, len(part))
	for _, i := range part {
		r := &returns[i]
		if s.closing.Load() && !r.releases() {
			all[i].Err = ErrClosed // Close releases it
			continue
		}
		ttls[i] = s.ledger.give(r.Lease.Token)
		invs, sent = append(invs, s.returning(r)), append(sent, i)
	}
	if len(sent) == 0 {
		return
	}
	answers := make(chan []reply, 1)
	err := s.doWithin(ctx, n, "giving back", s.manyTimeout(len(sent)), func(ctx context.Context) error {
		replies, err := s.runMany(ctx, invs)
		answers <- replies
		return err
	})
	var replies []reply
	select {
	case replies = <-answers:
	default: // it was given up, or not sent
	}
	for j, i := range sent {
		r := &returns[i]
		switch {
		case replies == nil:
			all[i].Err = err
		case notCarriedOut(replies[j].err):
			all[i].OK, all[i].Err = s.giveBack(ctx, r)
			all[i].OK = all[i].OK || r.releases() && all[i].Err == nil
			continue
		default:
			err := classify("giving back", replies[j].err)
			all[i] = Returned{err == nil && (r.releases() || replies[j].value == int64(1)), err}
		}
		s.gaveBack(r, all[i].Err, start, ttls[i])
		if all[i].OK && r.Entry != nil {
			s.stored(s.namesOf(r.Lease).entry.(string))
		}
		all[i].Err = n.explain(all[i].Err)
	}
}

// notCarriedOut reports whether the server said so.
func notCarriedOut(err error) bool {
	if err == nil {
		return false
	}
	for _, prefix := range []string{"NOSCRIPT", "MOVED", "ASK", "TRYAGAIN"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
