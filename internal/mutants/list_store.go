package mutants

import "slices"

const (
	redisStore  = "internal/redisstore"
	memoryStore = "internal/memstore"
	contract    = "internal/store"
)

// conformance is the suite of the contract, in fake time on the embedded server.
var conformance = Test(redisStore, "TestEmbeddedConformsInFakeTime")

// insistent stores an entry after its lease is gone.
var insistent = Patch{
	redisStore, "			all[i] = store.Returned{OK: err == nil && (sent[i].Releases()",
	`			if sent[i].Entry != nil && err == nil && answer.value != int64(1) {
				all[i] = store.Returned{OK: true, Err: (&values{core: s.core, ledger: s.ledger, tags: s.tags, feeds: s.watches.feeds}).Change(ctx, []store.Change{{Kind: store.Set, Key: sent[i].Lease.Key, Entry: sent[i].Entry}})[0]}
				continue
			}
			all[i] = store.Returned{OK: err == nil && (sent[i].Releases()`,
}

// storeMutants are of the stores.
func storeMutants() []Mutant {
	return slices.Concat(quick(
		Mutant{Name: "the store writes a refused fill", Patches: []Patch{insistent}, Check: Sim(100, "P2")},
		in("guard", "reads join one that was sent before", "	case !lk.sent.Load():\n", "	case lk != nil:\n", Sim(1000, "P3")),
		in(redisStore, "the client may send scripts again by itself", "NoRetry() bool { return true }", "NoRetry() bool { return false }",
			Test(redisStore, "TestScriptIsNotSentAgainByTheClient")),
		in(redisStore, "Close leaves its subscription before its leases are released", "	err := s.releaseAll(s.leases.ledger.held())\n	s.topo.close()\n",
			"	s.topo.close()\n	err := s.releaseAll(s.leases.ledger.held())\n", Test(redisStore, "TestCloseReleasesItsLeasesWhileItIsWatched")),
		in(memoryStore, "the memory store fills without its lease", "	if !k.heldBy(l.Token) {\n		m.giveUp", "	if false {\n		m.giveUp", Sim(1000, "P2").Of("memory")),
	), []Mutant{
		{Name: "the store writes a refused fill, seen by callers", Patches: []Patch{insistent}, Check: Sim(1000, "P3")},
		in(redisStore, "a deleted tag does not refuse a fill", "case uint64(deleted) > e.Stamp.N:", "case false:",
			Test("internal/harness/linear", "TestHistoriesAreLinearizable")),
		in(redisStore, "a record that may have forgotten a deletion counts", `store.Epoch([]byte(epoch)), text(4) != "1"`, "store.Epoch([]byte(epoch)), true", Test(redisStore, "TestUnsettledTagRecordHidesEntries")),
		in(redisStore, "an entry's tags are taken to be those of its last read", "t.known == nil || !slices.Equal(t.known.tags, tags)", "t.known == nil", conformance),
		in(redisStore, "tags on other nodes are looked up before the read is sent", "t.reads.records, t.others = s.tags.split(n, t.known.records)\n",
			"t.reads.records, t.others = s.tags.split(n, t.known.records)\n		t.lookUp, t.others = s.tags.startLookUp(context.WithoutCancel(ctx), t.others), nil\n",
			Test(redisStore, "TestQueuedReadSeesADeletedTagOnAnotherNode")),
		in(redisStore, "the time is that at which TIME was sent", "if b.now = n.clock.now(answered); b.now == 0 {", "_ = answered\n	if b.now = n.clock.now(sent); b.now == 0 {", Test(redisStore, "TestSlowReadsMakeNoEntryYounger")),
		in(redisStore, "TIME is not asked again after a suspension", "return max(monotonic, wall, 0), (wall - monotonic).Abs() > clockSlip", "_ = wall\n	return max(monotonic, 0), false", Test(redisStore, "TestSuspendedProcessTakesNoEntryForYounger")),
		in(redisStore, "a late fill is as fresh as one in time", "aged.FreshFor = max(aged.FreshFor-late, time.Millisecond)", "_ = late", Test(redisStore, "TestLateReturnStoresNoYoungerEntry")),
		in(redisStore, "a return without an answer is not tried again", "if !s.spawn(func() { s.giveBackLater(&later, start, ttl) }) {", "if _ = later; true {", Test(redisStore, "TestLateReturnStoresNoYoungerEntry")),
		in(memoryStore, "a Delete in memory leaves the lease", "	case store.Delete:\n		k.endLease(now)\n", "	case store.Delete:\n", Sim(1000, "P3").Of("memory")),
		in(memoryStore, "the memory store grants a lease that is held", "if watched || holder != r.Suspect {", "if false {", Sim(300, "fence").Of("memory")),
	})
}
