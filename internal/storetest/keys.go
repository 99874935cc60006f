package storetest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// hostileKeys are keys that have broken caches, and pairs that a careless encoding takes
// for one another.
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
	{"EntriesOfHostileKeysAreIndependent", func(f *fixture) {
		a, b := f.open(), f.open()
		keys := hostileKeys()
		for i, k := range keys {
			f.set(a, k, fmt.Sprint(i))
		}
		for i, k := range keys {
			f.reads(b, k, fmt.Sprint(i))
		}
		for i, k := range keys {
			f.change(b, store.Delete, k)
			f.misses(a, k)
			if i+1 < len(keys) {
				f.reads(a, keys[i+1], fmt.Sprint(i+1))
			}
		}
	}},

	{"LeasesOfHostileKeysAreIndependent", func(f *fixture) {
		a, b := f.open(), f.open()
		keys := hostileKeys()
		leases := make([]*store.Lease, len(keys))
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
				f.releases(a, l)
			}
		}
		for i, k := range keys {
			want := []store.Verdict{store.HasEntry, store.Paused, store.Granted}[i%3]
			f.answers(b, request(k), want)
		}
	}},

	{"WakeUpsOfHostileKeysAreIndependent", func(f *fixture) {
		a, b := f.open(), f.open()
		keys := hostileKeys()
		watches := make([]*store.Watch, len(keys))
		for i, k := range keys {
			watches[i] = f.watch(b, k)
		}
		for i, k := range keys {
			e := f.set(a, k, fmt.Sprint(i))
			if m := f.hears(watches[i], store.Filled); m.Token != e.Version {
				f.Errorf("key %.40q: heard of %v, want %v", k, m.Token, e.Version)
			}
		}
		for i, k := range keys {
			f.change(a, store.Delete, k)
			f.hears(watches[i], store.Deleted) // and of nothing else before
		}
	}},
}
