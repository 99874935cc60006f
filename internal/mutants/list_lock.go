package mutants

// lockMutants are of package lock and its scripts.
func lockMutants() []Mutant {
	contract := Test("lock", "TestRedisKeepsContract")
	script := func(script, name, old, replacement string, check Check) Mutant {
		return in("internal/redisstore/lua/"+script+".lua", name, old, replacement, check)
	}
	l1, l2, l3 := Test(simulator, "TestLockRuleL1OneValidHolder"), Test(simulator, "TestLockRuleL2FencesRise"), Test(simulator, "TestLockRuleL3DeadHoldersLeaveNothingLocked")
	lost := in("lock", "lock: a lost lock is extended", "	if k.Valid() == 0 {\n", "	if false {\n", l1)
	lost.Patches = append(lost.Patches, Patch{"lock", "if k.state != lockHeld || left(k.until) <= 0 { // it ended", "if false { // it ended"})
	return []Mutant{
		script("unlock", "lock: a release does not compare the ID", "if own(values[i]) then", "if values[i] then", l1),
		script("unlock", "lock: a release wakes no waiter", "      wake(values[i])\n", "", contract),
		script("lockextend", "lock: an extension does not compare the ID", "value and #value >= 25 and value:sub(1, 16) == ARGV[1]", "value", contract),
		script("lockextend", "lock: an extension makes the TTL shorter", "if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[2]) then", "if true then", contract),
		script("lockextend", "lock: an extension does not compare the fence", "if tonumber(ARGV[3]) > tonumber(redis.call('HMGET', KEYS[1], 'f')[1] or '0') then", "if true then", l2),
		script("lock", "lock: a fence does not rise", "redis.pcall('HINCRBY', KEYS[1], 'f', 1)", "redis.pcall('HINCRBY', KEYS[1], 'f', 0)", l2),
		script("lock", "lock: a lock outlives its TTL", "redis.call('SET', KEYS[2], value, 'NX', 'PX', ttl)", "redis.call('SET', KEYS[2], value, 'NX', 'PX', ttl * 3)", l3),
		script("lock", "lock: a restarted server votes", "if left > 0 then", "if false then", Test("lock", "TestRestartedServersAbstain")),
		script("lock", "lock: a dead holder is replaced unasked", "if dead and other:sub(1, 16) == ARGV[4] then", "if dead then", Test("lock", "TestFleetWaitsForKilledHolderWithoutTakeOver")),
		in("lock", "lock: no drift", "k.until = sent.Add(k.ttl - l.opts.drift(k.ttl))", "k.until = sent.Add(k.ttl)", Test("lock", "TestContextEndsBeforeTTLWithoutRenewal")),
		in("lock", "lock: a quorum of N/2", "quorum: len(backends)/2 + 1}", "quorum: len(backends) / 2}", l1),
		in("lock", "lock: fences of a majority are not raised", "	if differ {\n", "	if false {\n", Test("lock", "TestFencesRiseWhenMajorityChanges")),
		in("lock", "lock: split votes wake each other", "err == nil && n > len(l.panel.backends) {", "n < 0 {", Test("lock", "TestSplitVotesDoNotSpin")),
		in("lock", "lock: a thawed holder's context goes on", "	if cause != nil {\n		k.cancel(cause)\n	}\n}", "	_ = cause\n}", Test("lock", "TestThawedHolderFindsContextEnded")),
		lost,
	}
}
