package mutants

import "slices"

// nearMutants are of the near cache, and of the feed that keeps it coherent.
func nearMutants() []Mutant {
	return slices.Concat(quick(
		in("guard", "near values of an earlier epoch are served", "if v.epoch != n.feed.Epoch() {", "if false {", Sim(1500, "near").Of("near")),
		in(redisStore, "a feed stays up when its connection is lost", "	u.hears.Store(false)\n	u.n.s.feeds.Down()\n", "	u.hears.Store(false)\n", Sim(1500, "near").Of("near")),
		in("guard", "an invalidation does not rule out reads from before", "	n.stamp(key).Add(1)\n	n.values.Invalidate(key)", "	n.values.Invalidate(key)",
			Test("guard", "TestReadThatRacedADeleteIsNotKept")),
		in("guard", "a tag's deletion does not rule out reads from before", "if n.tagChanges.Load() != t.tagChanges {", "if false {",
			Test("guard", "TestTaggedReadThatRacedADeletionIsDropped")),
		in(redisStore, "a silent link keeps its feed up", "silent > deadAfter", "silent > time.Hour", Sim(3000, "near").Of("near")),
		in("guard", "a value of GetMany is put into the near cache with a later ticket",
			"e.near.put(keys[i], tickets[i], value", "e.near.put(keys[i], e.near.ticket(keys[i]), value", Test("guard", "TestGetManyKeepsNoInvalidatedValueNear")),
	), []Mutant{
		in(contract, "an epoch is used twice", "	fs.up = true\n	fs.epoch++\n", "	fs.up, fs.epoch = true, 1\n", Sim(1500, "near").Of("near")),
		in("guard", "a near value's epoch is that of its arrival", "epoch: t.epoch, stamp: n.stamp(key)", "epoch: n.feed.Epoch(), stamp: n.stamp(key)", Sim(3000, "near").Of("near")),
		in("guard", "a value of Get is put into the near cache with a later ticket", "		e.keepNear(key, w.ticket, w.out)\n", "		if e.near != nil {\n			w.ticket = e.near.ticket(key)\n		}\n		e.keepNear(key, w.ticket, w.out)\n",
			Test("guard", "TestReadThatRacedADeleteIsNotKept")),
		in("guard", "a forced fetch leaves the near value it replaces", "		f.e.near.forget(f.key) // the", "		// the", Test("guard", "TestRefreshOfADepartedCallerEndsTheNearValue")),
		in("guard", "a near value outlives its refresh's due time", "lives := min(n.ttl, due-age)", "lives := min(n.ttl, r.Entry.FreshFor-age)", Test("guard", "TestHotKeyIsRefreshedBeforeItExpires")),
		in("guard", "a waited value's ticket is taken at its end", "		e.keepNear(w.key, w.ticket, w.out)\n", "		if e.near != nil {\n			w.ticket = e.near.ticket(w.key)\n		}\n		e.keepNear(w.key, w.ticket, w.out)\n", Sim(3000, "near").Of("near")),
		in("guard", "Close leaves its feed behind", "	n.feed.Close()\n", "", Test("guard", "TestClosedGuardLeavesNoFeed")),
	})
}
