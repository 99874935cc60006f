package memstore

import (
	"bytes"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// key is all that is stored about one key: in Redis, six names.
type key struct {
	name  string
	place int // in data.ring

	entry     []byte // header and payload; never changed in place; nil: none
	entryEnds time.Time

	lease     *lease
	tries     map[store.Token]struct{} // granted and not yet accounted for
	triesEnd  time.Time                // once no lease renews them
	pause     []byte                   // the failure
	pauseEnds time.Time                // zero: no pause
	failures  int                      // in a row, with a pause
	failEnds  time.Time                // when they are forgotten
	failed    map[store.Token]failure

	watches map[*store.Watch]struct{}
}

type failure struct {
	bytes []byte
	ends  time.Time
}

// lease is a granted lease.
type lease struct {
	lease       *store.Lease
	owner       *Store
	ttl, window time.Duration
	renewed     time.Time // the last renewal, in the future while the process lives
	timer       *time.Timer
}

// ends is when the lease runs out by itself.
func (l *lease) ends() time.Time { return l.renewed.Add(l.ttl) }

// left is the answer of PTTL for a lease that was renewed just now.
func (l *lease) left(now time.Time) time.Duration { return min(l.ends().Sub(now), l.ttl) }

func (k *key) cost() int64 {
	if k.entry == nil {
		return 0
	}
	return entryCost(k.name, k.entry)
}

func (k *key) empty() bool {
	return k.entry == nil && k.lease == nil && len(k.tries) == 0 && k.pauseEnds.IsZero() && k.failures == 0 &&
		len(k.failed) == 0 && len(k.watches) == 0
}

// purge drops all expired parts but the entry.
func (k *key) purge(now time.Time) {
	if k.lease != nil && passed(k.lease.ends(), now) {
		k.endLease(now)
	}
	if k.lease == nil && len(k.tries) > 0 && passed(k.triesEnd, now) {
		k.tries = nil
	}
	if passed(k.pauseEnds, now) {
		k.endPause()
	}
	if k.failures > 0 && passed(k.failEnds, now) {
		k.failures = 0
	}
	for token, f := range k.failed {
		if passed(f.ends, now) {
			delete(k.failed, token)
		}
	}
}

// heldBy reports whether the lease is the token's.
func (k *key) heldBy(t store.Token) bool { return k.lease != nil && k.lease.lease.Token == t }

// endLease ends the lease, if there is one, against its holder's will.
func (k *key) endLease(now time.Time) {
	if k.lease != nil {
		k.lease.lease.Lose()
		k.dropLease(now)
	}
}

// dropLease removes the lease. The record of its attempt has been renewed with
// it and stays for as long as that said.
func (k *key) dropLease(now time.Time) {
	l := k.lease
	k.lease = nil
	if l.renewed.Before(now) {
		now = l.renewed
	}
	if end := now.Add(l.window); end.After(k.triesEnd) {
		k.triesEnd = end
	}
	l.stopTimer()
}

func (l *lease) stopTimer() {
	if l.timer.Stop() {
		l.owner.timers.Done()
	}
}

// forgive ends a quarantine and a pause.
func (k *key) forgive() {
	k.tries = nil
	k.failures = 0
	k.endPause()
}

func (k *key) endPause() { k.pause, k.pauseEnds = nil, time.Time{} }

// answer is the answer to a request that can't be granted; without a verdict it can. It
// follows acquire.lua step by step. An entry is for the caller to read.
func (k *key) answer(r *store.Request, alive map[store.Process]*Store, now time.Time) store.Answer {
	if !k.heldBy(r.LastHeld) { // else the caller has seen all entries and failures
		if k.entry != nil && string(k.entry[:min(len(k.entry), store.TokenSize)]) != r.Seen {
			return store.Answer{Verdict: store.HasEntry}
		}
		if f, ok := k.failed[r.LastHeld]; ok {
			return store.Answer{Verdict: store.Failed, Failure: bytes.Clone(f.bytes)}
		}
		if !k.pauseEnds.IsZero() {
			return store.Answer{Verdict: store.Paused, Failure: bytes.Clone(k.pause), TTL: k.pauseEnds.Sub(now)}
		}
	}
	if k.lease != nil {
		holder := k.lease.lease.Token
		_, watched := alive[holder.Process()]
		if watched || holder != r.Suspect {
			return store.Answer{Verdict: store.Held, Holder: holder, Unwatched: !watched, TTL: k.lease.left(now)}
		}
	}
	if r.MaxAttempts > 0 && k.deaths(alive) >= r.MaxAttempts {
		return store.Answer{Verdict: store.Quarantined, TTL: k.quarantineLeft(now)}
	}
	return store.Answer{}
}

// deaths counts processes, not tokens: one death can leave two tokens.
func (k *key) deaths(alive map[store.Process]*Store) int {
	dead := map[store.Process]struct{}{}
	for t := range k.tries {
		if _, ok := alive[t.Process()]; !ok {
			dead[t.Process()] = struct{}{}
		}
	}
	return len(dead)
}

func (k *key) quarantineLeft(now time.Time) time.Duration {
	if k.lease != nil {
		return max(k.triesEnd.Sub(now), k.lease.left(now))
	}
	return k.triesEnd.Sub(now)
}

// publish passes a message to the watches of the key.
func (k *key) publish(m store.Message) {
	for w := range k.watches {
		w.Push(m)
	}
}

// publishFilled tells of the entry b, which rides along if it is small.
func (k *key) publishFilled(t store.Token, b []byte) {
	if len(k.watches) == 0 {
		return
	}
	m := store.Message{Signal: store.Filled, Token: t}
	if len(b) <= store.MaxMessageBody {
		m.Body = bytes.Clone(b)
	}
	k.publish(m)
}
