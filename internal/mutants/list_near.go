package mutants

import "slices"

// nearMutants are of the near cache, and of the feed that keeps it coherent.
func nearMutants() []Mutant {
	return slices.Concat(quick(
		in("guard", "near values of an earlier epoch are served", "if v.epoch != n.coherence.feed.Epoch() {", "if false {", Sim(1500, "near").Of("near")),
		in("guard", "an invalidation does not rule out reads from before", "	c.stamp(hash).Add(1)\n", "",
			Test("guard", "TestReadThatRacedADeleteIsNotKept")),
		in("guard", "a tag's deletion does not rule out reads from before", "return s, c.tagChanges.Load() == t.tagChanges", "return s, true",
			Test("guard", "TestTaggedReadThatRacedADeletionIsDropped")),
		in(redisStore, "a silent link keeps its feed up", "silent > deadAfter", "silent > time.Hour", Test("internal/redisstore", "TestBrokenSubscriptionIsReplaced")),
	), []Mutant{
		in(redisStore, "a feed stays up when its connection is lost", "	u.hears.Store(false)\n	u.watches.feeds.Down()\n", "	u.hears.Store(false)\n", Sim(1500, "near").Of("near")),
		in("guard", "a value of GetMany is put into the near cache with a later ticket",
			"			t := tickets.of(i)\n", "			t := tickets.of(i)\n			if e.coherence != nil {\n				t = e.coherence.ticket(keys[i])\n			}\n", Test("guard", "TestGetManyKeepsNoInvalidatedValueNear")),
		in(contract, "an epoch is used twice", "	fs.up = true\n	fs.epoch++\n", "	fs.up, fs.epoch = true, 1\n", Test("guard", "TestNearCacheIsBypassedWhileDeaf")),
		in("guard", "a near value's epoch is that of its arrival", "epoch: t.epoch, since: since", "epoch: n.coherence.feed.Epoch(), since: since", Sim(3000, "near").Of("near")),
		in("guard", "a value of Get is put into the near cache with a later ticket", "		e.keep(key, w.ticket, w.out)\n", "		if e.coherence != nil {\n			w.ticket = e.coherence.ticket(key)\n		}\n		e.keep(key, w.ticket, w.out)\n",
			Test("guard", "TestReadThatRacedADeleteIsNotKept")),
		in("guard", "a forced fetch leaves the near value it replaces", "		f.e.coherence.forget(f.key) // the", "		// the", Test("guard", "TestRefreshOfADepartedCallerEndsTheNearValue")),
		in("guard", "a near value outlives its refresh's due time", "lives := min(n.ttl, due-age)", "lives := min(n.ttl, r.Entry.FreshFor-age)", Test("guard", "TestHotKeyIsRefreshedBeforeItExpires")),
		in("guard", "a waited value's ticket is taken at its end", "		e.keep(w.key, w.ticket, w.out)\n", "		if e.coherence != nil {\n			w.ticket = e.coherence.ticket(w.key)\n		}\n		e.keep(w.key, w.ticket, w.out)\n", Sim(3000, "near").Of("near")),
		in("guard", "Close leaves its feed behind", "		e.coherence.feed.Close()\n", "", Test("guard", "TestClosedGuardLeavesNoFeed")),
	})
}
