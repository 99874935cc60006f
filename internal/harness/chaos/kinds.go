package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

const (
	kindPrivate = "private"
	kindFailing = "failing"
	kindCold    = "cold"
	kindTagged  = "tagged"
	kindReserve = "reserve"

	opDelete    = "delete"
	opSet       = "set"
	opExpire    = "expire"
	opDeleteTag = "delete_tag"
)

var errBoom = errors.New("chaos: the origin is down")

// A kind of key has a guard of its own.
type kind struct {
	name    string
	keys    int
	weight  int // of all callers
	burst   int // so many of them at once, at most
	policy  guard.Policy
	opts    []guard.Option[string]
	fetch   time.Duration // at most; at least half of it
	size    int           // of the value, in bytes
	changed bool          // by Delete, Set and Expire
	raced   bool          // and that at the very moment in which a fetch ends
	deaf    bool          // the fetch doesn't heed its context
	single  bool          // LoadMany isn't called for it
}

var kinds = []kind{
	{
		name: "hot", keys: 6, weight: 25, burst: 8, fetch: 80 * time.Millisecond,
		policy: guard.Policy{TTL: time.Second},
	},
	{
		name: "large", keys: 2, weight: 5, burst: 4, fetch: 80 * time.Millisecond, size: 100 << 10,
		policy: guard.Policy{TTL: 2 * time.Second, Stale: time.Second, CompressAbove: 1 << 20},
	},
	{
		name: kindCold, weight: 15, burst: 4, fetch: 60 * time.Millisecond,
		policy: guard.Policy{TTL: 20 * time.Second},
	},
	{
		name: "short", keys: 4, weight: 10, burst: 4, fetch: 20 * time.Millisecond,
		policy: guard.Policy{TTL: 50 * time.Millisecond, FailClosed: true},
	},
	{
		name: "deleted", keys: 6, weight: 25, burst: 6, fetch: 120 * time.Millisecond, changed: true,
		policy: guard.Policy{TTL: 3 * time.Second, MaxBatch: 2},
	},
	{
		name: "stale", keys: 4, weight: 12, burst: 4, fetch: 120 * time.Millisecond, changed: true,
		policy: guard.Policy{TTL: 500 * time.Millisecond, Stale: 3 * time.Second},
	},
	{
		name: "raced", keys: 3, weight: 4, burst: 3, fetch: 8 * time.Millisecond, changed: true, raced: true,
		policy: guard.Policy{TTL: 3 * time.Second},
	},
	{
		name: kindTagged, keys: 6, weight: 10, burst: 4, fetch: 40 * time.Millisecond, changed: true, raced: true,
		policy: guard.Policy{TTL: 3 * time.Second},
		opts:   []guard.Option[string]{guard.TagsOf(func(key, _ string) []string { return tagsOf(key) })},
	},
	{
		name: kindReserve, keys: 6, weight: 10, burst: 4, fetch: 60 * time.Millisecond, changed: true,
		policy: guard.Policy{TTL: 2 * time.Second, Stale: time.Second, Reserve: guard.Reserve{MaxBytes: 1 << 20}},
	},
	{
		name: "slow", keys: 3, weight: 3, burst: 4, fetch: 2 * time.Second, deaf: true,
		policy: guard.Policy{TTL: 500 * time.Millisecond},
	},
	{
		name: kindFailing, keys: 4, weight: 5, burst: 4, fetch: 40 * time.Millisecond,
		policy: guard.Policy{TTL: time.Second},
	},
	{
		name: kindPrivate, keys: 2, weight: 3, burst: 3, fetch: 20 * time.Millisecond, single: true,
		policy: guard.Policy{TTL: time.Second, Bypass: 5 * time.Second},
	},
}

const (
	leaseTTL     = time.Second
	fetchTimeout = 3 * time.Second
	patient      = 5 * time.Second // the context of most callers
)

// terms are those of the kinds above.
func terms(redisTimeout time.Duration) Terms {
	longest := time.Duration(0)
	for _, k := range kinds {
		if k.changed {
			longest = max(longest, k.policy.TTL+k.policy.Stale)
		}
	}
	return Terms{
		Patience: time.Second, Reach: redisTimeout + 100*time.Millisecond, Late: 10 * time.Second, Lease: leaseTTL, Fetch: fetchTimeout,
		HardTTL: longest + fetchTimeout,
	}
}

// withTimes fills in the common fields of all kinds.
func withTimes(p guard.Policy) guard.Policy {
	p.Lease, p.FetchTimeout, p.Quarantine = leaseTTL, fetchTimeout, 8*time.Second
	p.Errors = map[string]error{"boom": errBoom}
	return p
}

// key draws one of the kind's keys. Cold ones are new several times a second,
// and the same in all processes.
func (k *kind) key(rng *rand.Rand) string {
	if k.name == kindCold {
		return fmt.Sprintf("%s-%d-%d", k.name, time.Now().UnixMilli()/250, rng.IntN(3))
	}
	return fmt.Sprintf("%s-%d", k.name, rng.IntN(k.keys))
}

// someKeys draws different keys of the kind: two at least.
func (k *kind) someKeys(rng *rand.Rand) []string {
	var keys []string
	for range 4 + rng.IntN(5) {
		keys = append(keys, k.key(rng))
	}
	slices.Sort(keys)
	for keys = slices.Compact(keys); len(keys) < 2; keys = slices.Compact(keys) {
		keys = append(keys, k.key(rng))
	}
	rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

// tagsOf are the tags of a key's values: one of half of the tagged keys, and one
// of each third of them.
func tagsOf(key string) []string {
	name, n, _ := strings.Cut(key, "-")
	if name != kindTagged {
		return nil
	}
	i, _ := strconv.Atoi(n)
	return []string{fmt.Sprintf("%s-half-%d", kindTagged, i%2), fmt.Sprintf("%s-third-%d", kindTagged, i%3)}
}

// pick draws a kind by weight.
func pick(rng *rand.Rand) *kind {
	total := 0
	for i := range kinds {
		total += kinds[i].weight
	}
	n := rng.IntN(total)
	for i := range kinds {
		if n -= kinds[i].weight; n < 0 {
			return &kinds[i]
		}
	}
	panic("unreachable")
}

// fail is how the fetch of a failing key ends.
func fail(key string) error {
	switch key[len(key)-1] {
	case '1':
		return guard.RetryAfter(errBoom, 300*time.Millisecond)
	case '2':
		panic("chaos: a fetch that panics")
	}
	return fmt.Errorf("chaos: %w", errBoom)
}
