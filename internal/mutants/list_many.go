package mutants

import "slices"

// manyMutants are of GetMany, and of what it asks of its store.
func manyMutants() []Mutant {
	insistent := Patch{
		"cache", "	return Returned{err == nil && (r.releases() || answer.value == int64(1)), err}",
		`	if r.Entry != nil && err == nil && answer.value != int64(1) {
		return Returned{true, s.Set(ctx, r.Lease.Key, r.Entry)}
	}
	return Returned{err == nil && (r.releases() || answer.value == int64(1)), err}`,
	}
	return slices.Concat(quick(
		in("guard", "a value of GetMany is put into the near cache with a later ticket",
			"m.near.put(keys[i], m.tickets[i], value", "m.near.put(keys[i], m.near.ticket(keys[i]), value",
			Test("guard", "TestGetManyKeepsNoInvalidatedValueNear")),
		in("cache", "a pipeline's answers are given to each other's keys", "		all[i].Answer, all[i].Err = r.acquired()\n", "		all[len(replies)-1-i].Answer, all[len(replies)-1-i].Err = r.acquired()\n",
			Sim(100, "value").Of("many")),
	), []Mutant{
		{Name: "a batch stores what was refused", Patches: []Patch{insistent}, Check: Sim(300, "P2").Of("many")},
		{Name: "a batch stores what was refused, seen by callers", Patches: []Patch{insistent}, Check: Sim(1000, "P3").Of("many")},
		in("guard", "a batch takes its stamp after its fetch", "	b.withStale(live, rs)\n", "	stamp, stampErr = b.stamp(live)\n	b.withStale(live, rs)\n", Sim(1000, "P3").Of("many")),
		in("guard", "leases of a fetch in parts last for one part", "ask.RenewFor = min(ask.RenewFor, cache.MaxTTL/fetches) * fetches", "ask.RenewFor = min(ask.RenewFor, cache.MaxTTL/fetches)", Sim(1000, "calm").Of("many")),
		in("cache", "a pipeline's unanswered tokens are left as asked for", "			s.ledger.leave(tokens[j])\n", "", Sim(300, "leak").Of("many")),
	})
}
