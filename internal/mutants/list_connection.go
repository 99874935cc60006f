package mutants

import "slices"

// connectionMutants are of subscriptions, topology, renewal and the ledger.
func connectionMutants() []Mutant {
	return slices.Concat(quick(
		in(redisStore, "a watch is confirmed before its subscription", "		if ch.requested && ch.pending == 0 {\n			w.Push", "		if true {\n			w.Push", conformance),
		in(redisStore, "a renewed lease ends as if it was not", "		r.due, r.expires = sent.Add(r.ttl/3), sent.Add(r.ttl)\n	}\n}", "		r.due = sent.Add(r.ttl / 3)\n	}\n}", Sim(1500, "calm")),
		in(redisStore, "a lease is renewed for ever", "case now.After(r.until):", "case false:", conformance),
		in(redisStore, "the loss of a lease is not told to its fetch", "			s.ledger.lose(batch[i].token)\n", "", Test(redisStore, "TestLeaseEndedElsewhereIsLostAtItsRenewal")),
		in(redisStore, "tokens that were never answered are not released", "err = errors.Join(err, s.releaseAll(s.leases.ledger.unanswered()))", "", Sim(1500, "left behind", "P7")),
	), []Mutant{
		in(redisStore, "Close does not leave its liveness channel", "u.write(func(ctx context.Context, ps *redis.PubSub) error { return ps.Unsubscribe(ctx, u.n.s.alive) })", "u.lose(u.ctx.Err())",
			Test(redisStore, "TestCloseIsNotOvertakenByALateAcquire")),
		in(redisStore, "channels are not asked for again on a new connection", "if ch.requested, ch.pending = false, 0; len(ch.watches) == 0 {", "if len(ch.watches) == 0 {",
			Test(redisStore, "TestWatchIsConfirmedAgainOnANewConnection")),
		in(redisStore, "an own orphan is waited for", "return r == nil || r.state == unanswered", "return r == nil && false", Test("guard", "TestLostGrantOfThisProcessIsNotAwaited")),
		in(redisStore, "a lease is renewed while its fill is under way", "	r.state = giving\n	return r.ttl", "	return r.ttl", Test(redisStore, "TestLeaseIsNotRenewedWhileItIsReturned")),
		in(redisStore, "an unanswered acquire's token is forgotten", "		s.ledger.leave(q.token)\n	}\n	return store.Answer{Err: err}", "		s.ledger.forget(q.token)\n	}\n	return store.Answer{Err: err}", Sim(1500, "left behind", "P7")),
		in(redisStore, "a change leaves this process's own fetch alone", "s.ledger.lose(holders[i])", "_ = holders[i]", Test("guard", "TestOwnDeleteFreesNewCallersAtOnce")),
		in(redisStore, "a grant that Close has overtaken is used", "	if r == nil || r.state != asked {\n		return false\n	}", "	if r == nil {\n		r = &record{token: lease.Token, key: lease.Key}\n		l.tokens[lease.Token] = r\n	}",
			Test(redisStore, "TestCloseReleasesGrantsItOvertakes")),
		in(redisStore, "a master that is back keeps its old client", "if n != nil && n.client == nodeClient(c) {", "if n != nil {", Test(redisStore, "TestReplacedClientOfAMasterIsNotAsked")),
		in(redisStore, "a new master's invalidations are not waited for", "		t.watches.feeds.Down() // until", "		// until", Test(redisStore, "TestNewMasterPutsTheFeedDown")),
		in(redisStore, "watches do not follow a slot", "		n.sub.add(h.channel, w)\n", "", Test(redisStore, "TestWatchFollowsItsKeyToAnotherMaster")),
		in(redisStore, "a script does not follow a slot", `[]string{"NOSCRIPT", "MOVED", "ASK", "TRYAGAIN"}`, `[]string{"NOSCRIPT"}`, Test(redisStore, "TestScriptsFollowAMovingSlot")),
		in(redisStore, "a replaced master is subscribed to for ever", "if u.state == live && u.liveAt.Before(since) {", "if false {", Test(redisStore, "TestSubscriptionFollowsTheCommands")),
		in(redisStore, "the breaker opens one failure late", "after+1 < b.limit:", "after+1 <= b.limit:", Test("guard", "TestBlackHoledRedisCostsAFewTimeouts")),
		{
			Name: "a breaker that is open does not stop scripts",
			Patches: []Patch{
				{redisStore, "	if !n.breaker.allow() {\n		err := n.away()", "	if false {\n		err := n.away()"},
				{redisStore, "	case !n.breaker.allow():\n		r.end(queued, withdrawn, n.away())", "	case false:\n		r.end(queued, withdrawn, n.away())"},
			},
			Check: Sim(1500, "breaker").Of("breaker"),
		},
	})
}
