package mutants

import "slices"

// Several scripts begin by comparing the lease with their token.
const notTheHolder = "if not lease or lease:sub(1, 16) ~= ARGV[1] then"

func lua(script, name, old, replacement string, check Check) Mutant {
	return in(redisStore+"/lua/"+script+".lua", name, old, replacement, check)
}

// scriptMutants are of the Lua scripts.
func scriptMutants() []Mutant {
	return slices.Concat(quick(
		lua("fill", "fill writes without its lease", notTheHolder, "if false then", Sim(100, "P2")),
		lua("acquire", "acquire does not look for an entry", "head ~= seen", "false", Sim(100, "P1")),
		lua("acquire", "acquire does not tell of a failure", "if failure then", "if false then", Sim(1000, "P8")),
		lua("acquire", "acquire ignores the lease", "elseif holder ~= over then", "elseif false then", Sim(100, "fence")),
		lua("acquire", "acquire takes over at the first look", "holder == suspect and abandoned", "abandoned", Sim(300, "fence")),
		lua("acquire", "acquire takes over from the living", "holder == suspect and abandoned", "holder == suspect", Sim(300, "takeover")),
		lua("acquire", "quarantine counts the living", "if unwatched(redis.pcall('PUBSUB', 'NUMSUB', channel(try)), 1) then dead", "if true then dead", Sim(300, "P7")),
		lua("acquire", "acquire grants a lease to an unsubscribed process", "if unwatched(reply, 1) then return {'unsubscribed'} end", "", Sim(300, "unsubscribed")),
		lua("extend", "extend does not renew the attempts", "redis.call('PEXPIRE', KEYS[2], ARGV[3])\n", "", Sim(300, "window")),
		lua("tie", "tie tells of no deletion", "return {deleted, expired, unsettled}", "return {0, expired, 0}", Sim(3000, "P3").Of("tags")),
	), []Mutant{
		lua("fill", "fill writes without its lease, seen by callers", notTheHolder, "if false then", Sim(300, "P3")),
		lua("fill", "an entry is not dated", "redis.call('SETRANGE', KEYS[1], 32, four(tonumber(now[1])) .. four(tonumber(now[2])))\n", "", conformance),
		lua("delete", "delete forgets the lease", "'DEL', KEYS[1], KEYS[2])", "'DEL', KEYS[1])", Sim(100, "delete")),
		lua("delete", "delete forgets the lease, seen by callers", "'DEL', KEYS[1], KEYS[2])", "'DEL', KEYS[1])", Sim(1000, "P3")),
		lua("set", "set forgets the lease", "'DEL', KEYS[2], KEYS[3]", "'DEL', KEYS[3]", Sim(100, "end of lease")),
		lua("set", "set forgets the lease, seen by callers", "'DEL', KEYS[2], KEYS[3]", "'DEL', KEYS[3]", Sim(1000, "P3")),
		lua("expire", "expire forgets the lease", "redis.call('DEL', KEYS[2])\n", "", Sim(100, "end of lease")),
		lua("release", "release ends any lease", notTheHolder+" return 0 end", "if not lease then return 0 end", Sim(300, "fence")),
		lua("release", "quarantine counts processes that left in order", "redis.call('SREM', KEYS[2], ARGV[1])\n", "", Sim(300, "left behind", "P7")),
		lua("fail", "fail ends any lease", notTheHolder, "if not lease then", Sim(300, "fence")),
		lua("fail", "a fetch that was not made forgives all deaths", "if ARGV[8] == '1' then", "if false then", Sim(1000, "exhausted").Of("budget")),
		lua("fill", "a fill does not end a row of failures", "KEYS[3], KEYS[4], KEYS[5])", "KEYS[3], KEYS[4])", conformance),
		lua("tag", "a tag's deletion is not recorded", "redis.call('HSET', KEYS[1], ARGV[3], string.format('%.0f', mark))", "", Sim(1000, "P3").Of("tags")),
		lua("tag", "an evicted record forgets later changes of its tag", "'t', '0', 'u', '1')", "'t', '0', 'u', '0')", Test(redisStore, "TestEvictedDeletionIsNotForgottenForAnEarlierOne")),
		lua("clock", "a tag's deletion does not advance the clock", "'HINCRBY', KEYS[1], 'n', ARGV[2]", "'HINCRBY', KEYS[1], 'n', 0", Sim(3000, "P3").Of("tags")),
	})
}
