package mutants

import "slices"

// storeMutants are of the Redis store.
func storeMutants() []Mutant {
	insistent := Patch{
		"cache", `	return s.giveBack(ctx, l, "fill", s.filling(l, e))`,
		`	ok, err := s.giveBack(ctx, l, "fill", s.filling(l, e))
	if err == nil && !ok {
		ok, err = true, s.Set(ctx, l.Key, e)
	}
	return ok, err`,
	}
	return slices.Concat(quick(
		Mutant{Name: "the store writes what fill refused", Patches: []Patch{insistent}, Check: Sim(100, "P2")},
		in("cache", "reads join one that was sent before", `	bt := b.join(func() *batch { return b.collecting(name) }, func(bt *batch) { i = bt.entries.add(name) })
`, `	var bt *batch
	b.mu.Lock()
	for _, u := range b.under {
		if u.entries.has(name) {
			bt, i = u, u.entries.place(name)
		}
	}
	b.mu.Unlock()
	if bt == nil {
		bt = b.join(func() *batch { return b.collecting(name) }, func(bt *batch) { i = bt.entries.add(name) })
	}
`, Sim(300, "P3")),
		in("cache", "the client may send scripts again by itself", "NoRetry() bool { return true }", "NoRetry() bool { return false }",
			Test("cache", "TestScriptIsNotSentAgainByTheClient")),
		in("cache", "Close leaves its subscription before its leases are released", `	err := s.releaseAll(s.ledger.held())
	s.topo.close()
`, `	s.topo.close()
	err := s.releaseAll(s.ledger.held())
`, Test("cache", "TestCloseReleasesItsLeasesWhileItIsWatched")),
	), []Mutant{
		{Name: "the store writes what fill refused, seen by callers", Patches: []Patch{insistent}, Check: Sim(1000, "P3")},
		in("cache", "a deleted tag does not refuse a fill", "case uint64(deleted) > e.Stamp.N:", "case false:",
			Test("internal/harness/linear", "TestHistoriesAreLinearizable")),
	})
}
