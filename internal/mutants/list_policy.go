package mutants

import "slices"

// policyMutants are of tags, budgets, early refresh, error pauses, Close and
// GetMany's batches.
func policyMutants() []Mutant {
	return slices.Concat(quick(
		in("guard", "a message with tags decides a flight", "		if len(r.Entry.Tags) > 0 {\n			return nil // one may", "		if false {\n			return nil // one may", Sim(3000, "P3").Of("tags")),
		in("guard", "a value whose tag was expired meanwhile is shared with all", "if !o.stored && e.tagged || entry.Flags&cache.FlagExpired != 0 {", "if false {", Test("guard", "TestValueWhoseTagIsExpiredWhileItIsFetchedIsFreshForNoTime", "TestNothingFromBeforeADeleteTagReachesWhoComesAfterIt")),
		in("guard", "a fetch is made though its budget is exhausted", "	if err := p.afford(&paid, lease); err != nil {\n		return p.unaffordable(lease, err)\n	}", "	_ = p.afford(&paid, lease)", Sim(300, "budget").Of("budget")),
		in("guard/budget/lua", "a budget refuses nothing", "if wait > tonumber(ARGV[4]) then", "if false then", Sim(300, "budget").Of("budget")),
		in("guard", "a Reload takes whatever came up meanwhile", "o.moment = p.unseen // who", "o.moment = always // who", Sim(1500, "reload").Of("refresh")),
		in("guard", "SoftTimeout is not heeded", "		case <-soft.over():\n			soft.stop()\n			f.borrow", "		case <-make(chan int):\n			soft.stop()\n			f.borrow", Sim(3000, "soft").Of("soft")),
		in("guard", "a batch fetches under leases that were lost", "	live := b.letGo(p.members)\n", "	live := p.members\n", Sim(3000, "P1", "calm", "sharing").Of("many")),
	), []Mutant{
		in("guard", "a flight that has waited uses the stamp from before", "if p.stamping == nil || p.watch != nil {", "if p.stamping == nil {", Test("guard", "TestDeletionWhileAFlightWaitsDoesNotSpoilItsFetch")),
		in("guard", "a value without a stamp is stored with its tags", "if r.stampErr != nil || r.stamp == (cache.Stamp{}) {", "if false {", Test("guard", "TestWithoutTheClockOfTagsNothingWithTagsIsStored")),
		in("guard", "the attempts of a batch are remembered for one part", "		ask.Window += ask.RenewFor - m.ask.RenewFor\n", "", Test("guard", "TestAttemptsOfALongBatchAreRemembered")),
		in("guard", "a batch goes on though nobody wants it", "	case <-unwanted:\n		rs = all(", "	case <-make(chan int):\n		rs = all(", Test("guard", "TestBatchIsCancelledWhenNobodyWantsAnyOfIt")),
		in("guard", "an exhausted budget is told to nobody", "	if _, err := p.store.Fail(ctx, lease, encodeFailure(why, 0, &p.policy), 0); errors.Is(err, cache.ErrRefused) {\n		_ = p.store.Release(ctx, lease)\n	}", "	_ = p.store.Release(ctx, lease)", Test("guard", "TestExhaustionIsToldToWaitersInOtherProcesses")),
		in("guard", "refreshes are as important as callers", "s.Priority, s.MaxWait = Background, 0", "s.MaxWait = 0", Test("guard", "TestRefreshesGiveWayToCallers")),
		in("guard/budget", "a grant whose answer comes too late is kept", "		if r.first == 0 {\n			(&expense{b: b, cost: s.Cost, slot: slot, taken: r.taken}).Settle(0)\n		}", "		_ = r", Test("guard/budget", "TestGrantThatComesTooLateIsGivenBack")),
		in("guard/budget", "a call that is over keeps its place", "	if e.slot != \"\" {\n		gone = []string{e.slot}\n	}", "", Test("guard/budget", "TestOnlySoManyCallsAreUnderWay")),
		in("guard", "no value is refreshed early", "	if beta <= 0 || e.Took <= 0 {", "	if true {", Test("guard", "TestHotKeyIsRefreshedBeforeAnybodyWaits")),
		in("guard", "a slow fetch's value is refreshed at once", "min(gap, float64(e.FreshFor)/2)", "min(gap, float64(e.FreshFor))", Test("guard", "TestSlowFetchIsNotRefreshedAtOnce")),
		in("guard", "pauses do not double", "		pause *= 2\n", "", Test("guard", "TestErrorPauseDoublesFleetWide")),
		in("guard", "a pause outlasts the value that callers live on", "pause = min(errorPause(&p.policy, lease.Failures), livedOn(p.known, waited, p.maskable(o), &p.policy))", "pause = errorPause(&p.policy, lease.Failures)", Test("guard", "TestErrorPauseIsNoLongerThanThereIsSomethingStale")),
		in("guard", "a refresh that failed is tried again at once", "		_ = sleep(p.ctx, holdOff)\n	}\n	return o", "	}\n	return o", Test("guard", "TestFailingRefreshDoesNotHammerTheOrigin")),
		lua("fill", "a fill does not end a row of failures", "KEYS[3], KEYS[4], KEYS[5])", "KEYS[3], KEYS[4])", conformance),
		in("guard", "a grant that comes after Close is kept", "		if answer.Verdict == cache.Granted {\n			_ = p.store.Release(context.WithoutCancel(p.ctx), answer.Lease)\n		}\n		return guardClosed()", "		return guardClosed()", Test("guard", "TestGrantThatComesAfterCloseIsGivenBack")),
		in("guard", "Close does not wait for leases to be given back", "	for _, fs := range e.allFlights() {\n		fs.wg.Wait()\n	}", "", Test("guard", "TestCloseEndsABatchAndFreesItsKeys")),
	})
}
