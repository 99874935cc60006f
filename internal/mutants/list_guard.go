package mutants

import "slices"

// guardMutants are of the engine, for one key.
func guardMutants() []Mutant {
	noSharingRule := Patch{"guard", "	case number >= o.moment:\n", "	case false:\n"}
	return slices.Concat(quick(
		Mutant{Name: "every outcome is shared", Patches: []Patch{noSharingRule}, Check: Sim(300, "P3")},
		in("guard", "waiters believe a message about any lease", "if !f.noteTrace(m) && m.Token == f.request.LastHeld {", "if !f.noteTrace(m) && m.Signal != store.Confirmed {",
			Test("guard", "TestWordOfAnotherLeaseIsNoOutcome")),
		in("guard", "the outcome of a filled message is shared with all callers",
			"source: Waited, stored: true, entry: r, at: time.Now(), moment: f.heldMoment}", "source: Waited, stored: true, entry: r, at: time.Now(), moment: always}",
			Test("guard", "TestLateMessageIsNotForLaterCallers")),
		in("guard", "a quarantine is believed at the first answer", "if !f.suspicious {", "if false {",
			Test("guard", "TestQuarantineIsBelievedOnlyWhenAnsweredTwice")),
		in("guard", "callers wait for Redis whatever their deadline", "	case <-ctx.Done():\n		return &read{err: context.Cause(ctx)}\n", "", Sim(300, "P4")),
	), []Mutant{
		in("guard", "the outcome of a pause is shared with all callers", "return &outcome{err: err, moment: f.moment}\n	case store.Quarantined", "return &outcome{err: err, moment: always}\n	case store.Quarantined",
			Test("guard", "TestPauseIsNotForCallersAfterAReset")),
		in("guard", "a fetch's failure is kept to itself", "	end.back = store.Return{\n", "	_ = store.Return{\n", Test("guard", "TestFailingFetchFailsEveryWaiterOnce")),
		{Name: "every outcome is shared, between real processes", Patches: []Patch{noSharingRule}, Check: Test("internal/harness/linear", "TestHistoriesAreLinearizable")},
		in("guard", "an entry that an acquire returned is for all callers", "	o.moment = f.moment\n	if f.kind == forced {", "	o.moment = always\n	if f.kind == forced {", Sim(1000, "P3")),
		in("guard", "a failure that an acquire told is for all callers", "return &outcome{err: decodeFailure(a.Failure, &f.e.policy), moment: f.heldMoment}", "return &outcome{err: decodeFailure(a.Failure, &f.e.policy), moment: always}",
			Sim(3000, "old failure")),
		in("guard", "a value with a refused fill is for all callers", "		o.moment = end.start\n	}\n	if entry == nil {", "		_ = o\n	}\n	if entry == nil {", Sim(1000, "P3", "sharing")),
		{
			Name: "a waiter never looks at its holder",
			Patches: []Patch{
				{"guard", "due := time.Now().Add(f.untilLook(left))", "due := time.Now().Add(f.untilLook(left) + time.Hour)"},
				{"guard", "late := !f.looked &&", "late := false && !f.looked &&"},
			},
			Check: Test("guard", "TestBatchTakesOverKeysOfDeadHolders"),
		},
		in("guard", "the waiters of a fleet look at once", "return time.Duration(draw * float64(d))", "return time.Duration(0 * draw * float64(d))", Test("guard", "TestLooksOfAFleetAreSpread")),
		in("guard", "looks grow with the waiting processes", "max(lookEvery, time.Duration(waiting)*fleetLookEvery)", "max(lookEvery, fleetLookEvery)", Test("guard", "TestLooksOfAFleetDoNotGrow")),
		in("guard", "a value that was not modified keeps no stamp of its own", "entry.Stamp.Epoch, entry.Stamp.N, entry.Renewed = old.Stamp.Epoch, old.Stamp.N, stamp.N", "entry.Renewed = stamp.N",
			Test("guard", "TestRenewalDuringADeletionOfItsTagIsRefused")),
		in("guard", "a stale value that was deleted is renewed", "	if l.told {\n		p.recheck(turns)\n	}\n", "", Test("guard", "TestDeletedValueIsNotRenewedAfterAWait", "TestDeletedValueIsNeverRenewed", "TestDeletedValueIsNotRenewedByAGet")),
		in("guard", "a fallback from before a caller came is lent to it", "if l := f.fallback.Load(); rd == nil && l != nil && number < l.moment {", "if l := f.fallback.Load(); rd == nil && l != nil {", Test("guard", "TestLaterCallersBorrowNoDeletedValue")),
		in("guard", "a queued change that Redis refuses is dropped", "			if e != nil {\n				err = e\n				continue\n			}\n			b.doneKey", "			err = e\n			b.doneKey", Test("guard", "TestRefusedInvalidationStaysQueued")),
		in("guard", "silence of Redis ends the wait for a holder", "	case f.outwaits(a.Err):\n		return f.wait(l.ctx, time.Until(f.heldUntil))\n", "", Test("guard", "TestWaiterInSilenceOutwaitsTheLease")),
		{
			Name:    "every Get asks for its lease unread",
			Patches: []Patch{{"guard", "const missesInARow = 16", "const missesInARow = 0"}},
			Check:   Test("internal/harness/linear", "TestHistoriesAreLinearizable"),
			Equivalent: "a wrong guess costs a script in place of a GET, and no caller may see it; " +
				"this is here to have the rare path taken by real processes",
		},
	})
}
