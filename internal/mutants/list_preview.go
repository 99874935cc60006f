package mutants

import "slices"

// previewMutants are of values before the end of their turn, and of bodies that are read as
// they grow.
func previewMutants() []Mutant {
	return slices.Concat(quick(
		in("guard", "a preview outlives a Delete", "	case number < p.allowed:\n", "	case true:\n", Test("guard", "TestPreviewIsNotForCallersAfterAChange")),
		in("middleware", "the broken end of a body is served as complete", "		panic(http.ErrAbortHandler) // a part must not look like the whole\n", "		_ = http.ErrAbortHandler\n",
			Test("middleware", "TestBrokenBodyReachesNoWaiterAsWhole")),
	), []Mutant{
		in("guard", "a preview outlives a Delete, in a fleet", "	case number < p.allowed:\n", "	case true:\n", Sim(1500, "P3").Of("turns")),
		in("guard", "another holder's lease confirms a preview", "	case a.Verdict != store.Held, a.Holder != t.lease.Token:\n", "	case a.Verdict != store.Held:\n",
			Test("guard", "TestPreviewIsNotConfirmedByAnotherLease")),
		in("guard", "a preview with tags is for all callers", "closed: tagged || o.turn.lease == nil", "closed: o.turn.lease == nil", Test("guard", "TestPreviewWithTagsIsForEarlierCallers")),
		in("guard", "the tags of TagsOf do not close a preview", " || of.of != nil)", ")", Sim(6000, "P3").Of("turns")),
		in("guard", "the end of a turn counts as the loss of its lease", "	if gone && !p.over {", "	if gone {", Test("guard", "TestPreviewThatMeetsTheTurnsEndLosesNoLease")),
		in("internal/httpcache", "a slow reader holds up a body for an hour", "	patience = 2 * time.Second\n", "	patience = time.Hour\n", Test("middleware", "TestBodyTooLargeToKeepReachesItsReaders")),
		in("middleware", "a body is shared after a purge by tag", "r.turn.Preview(p, r.tags...)", "r.turn.Preview(p)", Test("middleware", "TestPurgeEndsTheSharingOfABody")),
	})
}
