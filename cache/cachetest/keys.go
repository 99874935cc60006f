package cachetest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// hostileKeys are keys that have broken caches, and pairs that a careless
// encoding takes for one another.
func hostileKeys() []string {
	long := strings.Repeat("k", 64<<10)
	sum := sha256.Sum256([]byte(long))
	keys := []string{
		"", " ", "}", "{", "{}", "}{", "{a}b", "{a}c", "a}", "a{", "a{b}", "%", "%%", "%}", "%#", "%{", "}%",
		"a\nb", "a\r\nb", "a b", "a", "\x00", "a\x00", "a\x00b", "\xff\xfe", "a\xc3", "\u00e9", "e\u0301",
		":", "a:lease", "a}:lease", "a:tries", "a}:wake", ":lease", "a:failed:none", "*", "?", "[a]", "\\", "'", "\"",
		long, long + "k", long[:len(long)-1] + "l",
		"%#" + hex.EncodeToString(sum[:]), "#" + hex.EncodeToString(sum[:]), hex.EncodeToString(sum[:]),
	}
	for _, n := range []int{511, 512, 513} {
		keys = append(keys, strings.Repeat("}", n), strings.Repeat("%", n))
	}
	return keys
}

// pitfall 26
var keyTests = []test{
	{"EntriesOfHostileKeysAreIndependent", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		keys := hostileKeys()
		for i, k := range keys {
			f.set(a, k, fmt.Sprint(i))
		}
		for i, k := range keys {
			f.reads(b, k, fmt.Sprint(i))
		}
		for i, k := range keys {
			f.ok("Delete", b.Delete(f.ctx, k))
			f.misses(a, k)
			if i+1 < len(keys) {
				f.reads(a, keys[i+1], fmt.Sprint(i+1))
			}
		}
	}},

	{"LeasesOfHostileKeysAreIndependent", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		keys := hostileKeys()
		leases := make([]*cache.Lease, len(keys))
		for i, k := range keys {
			leases[i] = f.granted(a, k)
			if leases[i].Attempt != 1 || leases[i].Key != k {
				f.Fatalf("key %.40q: granted attempt %d of %.40q", k, leases[i].Attempt, leases[i].Key)
			}
		}
		for i, l := range leases {
			f.heldBy(b, l)
			switch i % 3 {
			case 0:
				f.fills(a, l, fmt.Sprint(i))
			case 1:
				f.fails(a, l, "why", time.Minute)
			default:
				f.ok("Release", a.Release(f.ctx, l))
			}
		}
		for i, k := range keys {
			want := []cache.Verdict{cache.HasEntry, cache.Paused, cache.Granted}[i%3]
			f.answers(b, k, anAsk(), want)
		}
	}},

	{"WakeUpsOfHostileKeysAreIndependent", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		keys := hostileKeys()
		watches := make([]*cache.Watch, len(keys))
		for i, k := range keys {
			watches[i] = f.watch(b, k)
		}
		for i, k := range keys {
			e := f.set(a, k, fmt.Sprint(i))
			if m := f.hears(watches[i], cache.Filled); m.Token != e.Version {
				f.Errorf("key %.40q: heard of %v, want %v", k, m.Token, e.Version)
			}
		}
		for i, k := range keys {
			f.ok("Delete", a.Delete(f.ctx, k))
			f.hears(watches[i], cache.Deleted) // and of nothing else before
		}
	}},
}
