package mutants

import "slices"

// manyMutants are of GetMany, and of the store's calls for many keys.
func manyMutants() []Mutant {
	return slices.Concat(quick(
		in(redisStore, "a pipeline's answers are given to each other's keys", `classified(x.n, "acquire", x.r.scripts.replies[k])`, `classified(x.n, "acquire", x.r.scripts.replies[len(x.places)-1-k])`,
			Sim(100, "value", "fence", "P2", "error", "leak").Of("many")),
	), []Mutant{
		{Name: "a batch stores refused values", Patches: []Patch{insistent}, Check: Sim(300, "P2").Of("many")},
		{Name: "a batch stores refused values, seen by callers", Patches: []Patch{insistent}, Check: Sim(1000, "P3").Of("many")},
		in("guard", "a batch takes its stamp after its fetch", "	ends := slices.Grow(p.ends[:0], len(turns))\n", "	p.stamp, p.stampErr = p.l.e.store.Stamp(p.l.ctx)\n	ends := slices.Grow(p.ends[:0], len(turns))\n",
			Test("guard", "TestTagDeletedWhileABatchIsFetched")),
		in("guard", "the last part of a batch uses the first one's stamp", "!waited && p.keys.now == 0 && turns", "!waited && turns", Test("guard", "TestTagDeletedBeforeAPartSpoilsNothing")),
		in("guard", "leases of a fetch in parts last for one part", "		r.RenewFor = min(r.RenewFor, store.MaxTTL/parts) * parts\n", "		_ = parts\n", Sim(1000, "calm").Of("many")),
		in("guard", "a flight of several keeps waiting with its leader", "			l.part(f)\n			f.next <- a\n", "			f.next <- a\n", Test("guard", "TestReversedBatchesDoNotDeadlock", "TestOverlappingBatchesFetchEachKeyOnce", "TestBatchTakesOverKeysOfDeadHolders")),
		in(redisStore, "a pipeline's unanswered tokens are left as asked for", "				answers[i] = s.unanswered(asked[j], fate, err)\n", "				answers[i] = store.Answer{Err: err}\n", Sim(300, "leak").Of("many")),
	})
}
