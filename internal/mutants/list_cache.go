package mutants

import "slices"

// conformance is the suite of what a store must do, in fake time.
var conformance = Test("cache", "TestRedisEmbeddedConformsInFakeTime")

// connectionMutants are of subscriptions, topology, renewal and the ledger.
func connectionMutants() []Mutant {
	return slices.Concat(quick(
		in("cache", "Close does not take back its liveness", "		u.leave(ctx, ps, received)\n", "		_ = received\n", Sim(3000, "left behind")),
		in("cache", "channels are not asked for again on a new connection", "		ch.requested, ch.pending = false, 0\n		if len(ch.watches) == 0 {", "		if len(ch.watches) == 0 {", conformance),
		in("cache", "a watch is confirmed before its subscription", "if ch.requested && ch.pending == 0 {\n		w.Push", "if true {\n		w.Push", conformance),
		in("cache", "a renewed lease ends as if it was not", "		r.due, r.expires = sent.Add(r.ttl/3), sent.Add(r.ttl)\n	}\n}", "		r.due = sent.Add(r.ttl / 3)\n	}\n}", Sim(1500, "calm")),
		in("cache", "a lease is renewed for ever", "case now.After(r.until):", "case false:", conformance),
		in("cache", "the loss of a lease is not told to its fetch", "				s.ledger.lose(batch[i].token)\n", "", Test("guard", "TestFetchThatLostItsLeaseIsCancelledWhenNobodyCanUseIt")),
		in("cache", "tokens that were never answered are not released", "err = errors.Join(err, s.releaseAll(s.ledger.unanswered()))", "", Sim(1500, "left behind", "P7")),
		in("cache", "an own orphan is waited for", "return r == nil || r.state == unanswered", "return r == nil && false", Test("guard", "TestOwnGrantWhoseAnswerWasLostIsNotWaitedFor")),
		in("cache", "a lease is renewed while its fill is under way", "		r.state = giving\n", "", Test("cache", "TestLeaseIsNotRenewedWhileItIsGivenBack")),
	), []Mutant{
		in("cache", "an unanswered acquire's token is forgotten", "	case err != nil && !errors.Is(err, ErrRefused):\n		s.ledger.leave(token)", "	case err != nil && !errors.Is(err, ErrRefused):\n		s.ledger.forget(token)", Sim(1500, "left behind", "P7")),
		in("cache", "a change leaves this process's own fetch alone", "	s.ledger.lose(holder)\n	return nil", "	_ = holder\n	return nil", Test("guard", "TestDeleteInTheFetchingProcessFreesNewcomersAtOnce")),
		in("cache", "a grant that Close has overtaken is used", "	if r == nil || r.state != asked {\n		return false\n	}", "	if r == nil {\n		r = &record{token: lease.Token, key: lease.Key}\n		l.tokens[lease.Token] = r\n	}", Test("cache", "TestCloseThatOvertakesAGrantReleasesIt")),
		in("cache", "a master that is back keeps its old client", "if n != nil && n.client == nodeClient(c) {", "if n != nil {", Test("cache", "TestFeedIsLiveAgainOnceAMasterIsBackAtItsAddress")),
		in("cache", "a new master's invalidations are not waited for", "		t.s.feeds.down() // until", "		// until", Test("cache", "TestFeedIsDownUntilANewMasterIsHeard")),
		in("cache", "watches do not follow a slot", "			n.sub.add(name, w)\n			s.homes.where[w] = n.sub\n		}", "			s.homes.where[w] = n.sub\n		}", Test("guard", "TestSlotThatMovesUnderAFetchTakesItsWaitersAlong")),
		in("cache", "a pipeline does not follow a slot", `[]string{"NOSCRIPT", "MOVED", "ASK", "TRYAGAIN"}`, `[]string{"NOSCRIPT"}`, Test("cache", "TestSlotsThatMoveApartUnderAPipelineAreServed")),
		in("cache", "a replaced master is subscribed to for ever", "	if !u.isLive || !u.liveAt.Before(since) {\n		return\n	}\n	select {\n	case u.doubted <- struct{}{}:", "	select {\n	case <-u.doubted:", Test("cache", "TestFeedFollowsTheCommands")),
		in("cache", "the breaker opens for calls of one outage only", "if !b.failures.CompareAndSwap(after, after+1) || after+1 < b.limit {", "if !b.failures.CompareAndSwap(after, after+1) || after+1 <= b.limit {", Test("cache", "TestBreakerOpensAfterTwoTimeoutsWhateverTheLoad")),
		in("cache", "a breaker that is open does not stop scripts", "	case !n.breaker.allow():\n		return nil, notSent, errBreakerOpen\n", "", Sim(1500, "breaker").Of("breaker")),
	})
}
