package mutants

import "slices"

// nearMutants are of the near cache, and of the feed that keeps it coherent.
func nearMutants() []Mutant {
	return slices.Concat(quick(
		in("guard", "near values of an earlier epoch are served", "if v.epoch != n.feed.Epoch() {", "if false {", Sim(1500, "near").Of("near")),
		in("cache", "a feed stays up when its connection is lost", "	u.hears.Store(false)\n	u.s.feeds.down()\n", "	u.hears.Store(false)\n", Sim(1500, "near").Of("near")),
		in("guard", "an invalidation does not rule out reads from before", "	n.stamp(key).Add(1)\n	n.values.Invalidate(key)", "	n.values.Invalidate(key)",
			Test("guard", "TestReadThatRacedAnInvalidationIsNotPutBack")),
		in("guard", "a tag's deletion does not rule out reads from before", "if n.tagChanges.Load() != t.tagChanges {", "if false {",
			Test("guard", "TestTaggedReadThatRacedADeletionIsNotPutBack")),
		in("cache", "a silent link keeps its feed up", "silent > deadAfter", "silent > time.Hour", Sim(3000, "near").Of("near")),
	), []Mutant{
		in("cache", "an epoch is used twice", "	f.live = true\n	f.epoch++\n", "	f.live, f.epoch = true, 1\n", Sim(1500, "near").Of("near")),
		in("guard", "a near value's epoch is that of its arrival", "epoch: t.epoch, stamp: n.stamp(key)", "epoch: n.feed.Epoch(), stamp: n.stamp(key)", Sim(3000, "near").Of("near")),
		in("guard", "a Reload leaves the near value it replaces", "						e.near.forget(c.key)\n", "", Test("guard", "TestNearValueEndsWithARefreshWhoseCallerHasLeft")),
		in("guard", "a near value outlives its refresh's due time", "lives := min(n.ttl, due-age)", "lives := min(n.ttl, r.Entry.FreshFor-age)", Test("guard", "TestHotKeyIsRefreshedBeforeAnybodyWaits")),
		in("guard", "GetMany takes the ticket of a waited value at its end", "m.near.put(w.key, w.t, o.value", "m.near.put(w.key, m.near.ticket(w.key), o.value", Sim(3000, "near").Of("near")),
		in("guard", "Close leaves its feed behind", "	n.feed.Close()\n", "", Test("guard", "TestClosedGuardLeavesNoFeed")),
	})
}
