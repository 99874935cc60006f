package mutants

// lockMutants are of package lock and its scripts.
func lockMutants() []Mutant {
	contract := Test("lock", "TestRedisKeepsContract")
	script := func(script, name, old, replacement string, check Check) Mutant {
		return in("internal/redisstore/lua/"+script+".lua", name, old, replacement, check)
	}
	lost := in("lock", "lock: a lost lock is extended", "	if k.Valid() == 0 {\n", "	if false {\n", Test("lock", "TestContextEndsBeforeTTLWithoutRenewal"))
	lost.Patches = append(lost.Patches, Patch{"lock", "if k.state != lockHeld || left(k.until) <= 0 { // it ended", "if false { // it ended"})
	return []Mutant{
		script("unlock", "lock: a release does not compare the ID", "if own(values[i - 2]) then", "if values[i - 2] then", contract),
		script("unlock", "lock: a release wakes no waiter", "    redis.pcall(ARGV[4], ARGV[2], ARGV[3])\n", "", contract),
		script("lockextend", "lock: an extension does not compare the ID", "value and #value == 25 and value:sub(1, 16) == ARGV[1]", "value", contract),
		script("lock", "lock: a fence does not rise", "redis.pcall('INCR', KEYS[1])", "redis.pcall('INCRBY', KEYS[1], 0)", Test("lock", "TestTryLockTellsHolderAtOnce")),
		script("lock", "lock: a restarted server votes", "if left > 0 then", "if false then", Test("lock", "TestRestartedServersAbstain")),
		script("lock", "lock: a dead holder is replaced unasked", "if gone and value:sub(1, 16) == ARGV[3] then", "if gone then", Test("lock", "TestFleetWaitsForKilledHolderWithoutTakeOver")),
		in("lock", "lock: no drift", "k.until = sent.Add(k.ttl - l.opts.drift(k.ttl))", "k.until = sent.Add(k.ttl)", Test("lock", "TestContextEndsBeforeTTLWithoutRenewal")),
		in("lock", "lock: a quorum of N/2", "quorum: len(backends)/2 + 1,", "quorum: len(backends) / 2,", Test("lock", "TestQuorumHasOneHolderAtATime")),
		in("lock", "lock: fences of a majority are not raised", "	if differ {\n", "	if false {\n", Test("lock", "TestFencesRiseWhenMajorityChanges")),
		lost,
	}
}
