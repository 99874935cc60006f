package mutants

import "slices"

// guardMutants are of what a guard does for one key.
func guardMutants() []Mutant {
	noSharingRule := Patch{"guard", "	case num >= o.moment:\n", "	case false:\n"}
	return slices.Concat(quick(
		Mutant{Name: "every outcome is shared", Patches: []Patch{noSharingRule}, Check: Sim(300, "P3")},
		in("guard", "waiters believe a message about any lease", "if m.Token == p.ask.LastHeld {", "if m.Signal != cache.Confirmed {",
			Test("guard", "TestWordOfAnotherLeaseIsNoOutcome")),
		in("guard", "the outcome of a filled message is shared with all callers",
			"source: Waited, stored: true, entry: r, at: time.Now(), moment: p.heldMoment}", "source: Waited, stored: true, entry: r, at: time.Now(), moment: always}",
			Test("guard", "TestLateMessageIsNotForLaterCallers")),
		in("guard", "the outcome of a pause is shared with all callers", "return &outcome{err: err, moment: p.moment}\n	case cache.Quarantined", "return &outcome{err: err, moment: always}\n	case cache.Quarantined",
			Test("guard", "TestPauseIsNotForCallersAfterAReset")),
		in("guard", "a quarantine is believed at the first answer", "if !p.suspicious {", "if false {",
			Test("guard", "TestQuarantineIsBelievedOnlyWhenAnsweredTwice")),
		in("guard", "a fetch's failure is kept to itself", "done.OK, done.Err = p.store.Fail(ctx, e.back.Lease, e.back.Failure, e.back.Pause)", "done.OK = true", Sim(300, "leak")),
		in("guard", "callers wait for Redis whatever their deadline", "r, err := e.store.Read(c.ctx, e.storeKey(c.key))", "r, err := e.store.Read(context.WithoutCancel(c.ctx), e.storeKey(c.key))", Sim(300, "P4")),
	), []Mutant{
		{Name: "every outcome is shared, between real processes", Patches: []Patch{noSharingRule}, Check: Test("internal/harness/linear", "TestHistoriesAreLinearizable")},
		{
			Name:    "every Get asks for its lease unread",
			Patches: []Patch{{"guard", "const missesInARow = 16", "const missesInARow = 0"}},
			Check:   Test("internal/harness/linear", "TestHistoriesAreLinearizable"),
			Equivalent: "a wrong guess costs a script in place of a GET, and no caller may see it; " +
				"this is here to have the rare path taken by real processes",
		},
	})
}
