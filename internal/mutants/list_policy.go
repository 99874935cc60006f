package mutants

import "slices"

// policyMutants are of tags, budgets, early refresh, error pauses and Close.
func policyMutants() []Mutant {
	return slices.Concat(quick(
		in("guard", "a fetch is made though its budget is exhausted", "	if err != nil {\n		p.settleUnpaid(turns, err)\n		return nil, nil, paid\n	}", "", Sim(300, "budget").Of("budget")),
		in("guard/budget/lua", "a budget refuses nothing", "if wait > tonumber(ARGV[4]) then", "if false then", Sim(300, "budget").Of("budget")),
		in("guard", "a caller with MaxAge takes any value that came up", "o.moment = f.unseen // a", "o.moment = always // a", Sim(1500, "reload").Of("refresh")),
		in("guard", "SoftTimeout is not heeded", "		case <-c.soft.over():\n", "		case <-(chan int)(nil):\n", Sim(3000, "soft").Of("soft")),
	), []Mutant{
		in("guard", "a message with tags decides a flight", "		if len(r.Entry.Tags) > 0 {\n			return nil // one may", "		if false {\n			return nil // one may", Sim(3000, "P3").Of("tags")),
		in("guard", "a value with a tag that was expired meanwhile is shared with all", "if !o.stored && end.tagged || entry.Flags&store.FlagExpired != 0 {", "if false {",
			Test("guard", "TestTagExpiredDuringAFetchMakesItsValueStale", "TestDeleteTagHidesEarlierFetchesFromLaterCallers")),
		in("guard", "a batch fetches under leases that were lost", "		case t.lease != nil && t.lease.IsLost():\n", "		case false:\n", Test("guard", "TestBatchFetchesUnderNoLostLease")),
		in("guard", "a flight that has waited uses the stamp from before", "p.keys.now == 0 && turns[0].f.watch == nil {", "p.keys.now == 0 {", Test("guard", "TestTagDeletedBeforeAWaiterFetchesSpoilsNothing")),
		in("guard", "a value without a stamp is stored with its tags", "if p.stampErr != nil || p.stamp == (store.Stamp{}) {", "if false {", Test("guard", "TestTaggedValuesNeedTheClockOfTags")),
		in("guard", "the attempts of a batch are remembered for one part", "		r.Window += r.RenewFor - f.request.RenewFor\n", "", Test("guard", "TestAttemptsOfABatchOutlastItsLeases")),
		in("guard", "an unwanted batch goes on", "		t.part.cancel(errNotWanted)\n", "		_ = errNotWanted\n", Test("guard", "TestUnwantedBatchIsCancelled")),
		in("guard", "an exhausted budget is not told to waiters", "			end.fail(why) // waiters", "			end.out = &outcome{err: why, moment: end.start} // waiters", Test("guard", "TestExhaustionIsToldToWaitersInOtherProcesses")),
		in("guard", "refreshes are as important as callers", "s.Priority, s.MaxWait = Background, 0", "s.MaxWait = 0", Test("guard", "TestRefreshesGiveWayToCallers")),
		in("guard/budget", "a grant whose answer comes too late is kept", "		if r.first == 0 {\n			(&expense{b: b, cost: s.Cost, slot: slot, taken: r.taken}).Settle(0)\n		}", "		_ = r", Test("guard/budget", "TestGrantThatComesTooLateIsRefunded")),
		in("guard/budget", "a call that is over keeps its place", "		d.slots = []string{e.slot}\n", "", Test("guard/budget", "TestMaxInFlightBoundsCallsUnderWay")),
		in("guard", "no value is refreshed early", "	if beta <= 0 || e.Took <= 0 {", "	if true {", Test("guard", "TestHotKeyIsRefreshedBeforeItExpires")),
		in("guard", "a slow fetch's value is refreshed at once", "min(gap, float64(e.FreshFor)/2)", "min(gap, float64(e.FreshFor))", Test("guard", "TestEarlyRefreshIsDrawnOncePerVersion")),
		in("guard", "pauses do not double", "		pause *= 2\n", "", Test("guard", "TestErrorPauseDoublesFleetWide")),
		in("guard", "a pause outlasts the value that callers live on", "pause = min(errorPause(&e.policy, t.lease.Failures), livedOn(r, waited, e.maskable(end.out), &e.policy))", "pause = errorPause(&e.policy, t.lease.Failures)", Test("guard", "TestErrorPauseEndsWithTheStaleValue")),
		in("guard", "a refresh that failed is tried again at once", "		_ = sleep(f.by.ctx, holdOff)\n", "", Test("guard", "TestFailedRefreshIsHeldOffWithoutAPause")),
		in("guard", "a grant that comes after Close is kept", "			l.e.store.Return(l.endless, []store.Return{{Lease: a.Lease}})\n", "", Test("guard", "TestGrantThatComesAfterCloseIsReturned")),
		in("guard", "Close does not wait for leases to be given back", "	e.flights.wg.Wait()\n", "", Test("guard", "TestCloseReturnsWhenItsLeasesAreReleased")),
	})
}
