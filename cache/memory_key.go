package cache

import (
	"bytes"
	"time"
)

// memoryKey is all that is stored about one key: in Redis, six names.
type memoryKey struct {
	name  string
	place int // in memoryData.ring

	entry     []byte // header and payload; never changed in place; nil: none
	entryEnds time.Time

	lease     *memoryLease
	tries     map[Token]struct{} // granted and not yet accounted for
	triesEnd  time.Time          // once no lease renews them
	pause     []byte             // the failure
	pauseEnds time.Time          // zero: no pause
	failures  int                // in a row, with a pause
	failEnds  time.Time          // when they are forgotten
	failed    map[Token]memoryFailure

	watches map[*Watch]struct{}
}

type memoryFailure struct {
	bytes []byte
	ends  time.Time
}

// memoryLease is a granted lease.
type memoryLease struct {
	lease       *Lease
	owner       *Memory
	ttl, window time.Duration
	renewed     time.Time // the last renewal, in the future while the process lives
	timer       *time.Timer
}

// ends is when the lease runs out by itself.
func (l *memoryLease) ends() time.Time { return l.renewed.Add(l.ttl) }

// left is what PTTL would answer for a lease that was renewed just now.
func (l *memoryLease) left(now time.Time) time.Duration { return min(l.ends().Sub(now), l.ttl) }

func (k *memoryKey) cost() int64 {
	if k.entry == nil {
		return 0
	}
	return entryCost(k.name, k.entry)
}

func (k *memoryKey) empty() bool {
	return k.entry == nil && k.lease == nil && len(k.tries) == 0 && k.pauseEnds.IsZero() && k.failures == 0 &&
		len(k.failed) == 0 && len(k.watches) == 0
}

// purge drops what has expired, but for the entry.
func (k *memoryKey) purge(now time.Time) {
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
func (k *memoryKey) heldBy(t Token) bool { return k.lease != nil && k.lease.lease.Token == t }

// endLease ends the lease, if there is one, against its holder's will.
func (k *memoryKey) endLease(now time.Time) {
	if k.lease != nil {
		k.lease.lease.Lose()
		k.dropLease(now)
	}
}

// dropLease removes the lease. The record of its attempt has been renewed with
// it and stays for as long as that said.
func (k *memoryKey) dropLease(now time.Time) {
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

func (l *memoryLease) stopTimer() {
	if l.timer.Stop() {
		l.owner.timers.Done()
	}
}

// forgive ends a quarantine and a pause.
func (k *memoryKey) forgive() {
	k.tries = nil
	k.failures = 0
	k.endPause()
}

func (k *memoryKey) endPause() { k.pause, k.pauseEnds = nil, time.Time{} }

// verdict answers an ask that can't be granted; the zero Answer says that it
// can. It follows acquire.lua step by step.
func (k *memoryKey) verdict(ask *Ask, alive map[Process]struct{}, now time.Time) Answer {
	if k.entry != nil && string(k.entry[:min(len(k.entry), TokenSize)]) != ask.Seen {
		return Answer{Verdict: HasEntry}
	}
	if f, ok := k.failed[ask.LastHeld]; ok {
		return Answer{Verdict: Failed, Failure: bytes.Clone(f.bytes)}
	}
	if !k.pauseEnds.IsZero() {
		return Answer{Verdict: Paused, Failure: bytes.Clone(k.pause), TTL: k.pauseEnds.Sub(now)}
	}
	if k.lease != nil {
		holder := k.lease.lease.Token
		_, watched := alive[holder.Process()]
		if watched || holder != ask.Suspect {
			return Answer{Verdict: Held, Holder: holder, Unwatched: !watched, TTL: k.lease.left(now)}
		}
	}
	if ask.MaxAttempts > 0 && k.deaths(alive) >= ask.MaxAttempts {
		return Answer{Verdict: Quarantined, TTL: k.quarantineLeft(now)}
	}
	return Answer{}
}

// deaths counts processes, not tokens: one death can leave two tokens.
func (k *memoryKey) deaths(alive map[Process]struct{}) int {
	dead := map[Process]struct{}{}
	for t := range k.tries {
		if _, ok := alive[t.Process()]; !ok {
			dead[t.Process()] = struct{}{}
		}
	}
	return len(dead)
}

func (k *memoryKey) quarantineLeft(now time.Time) time.Duration {
	if k.lease != nil {
		return max(k.triesEnd.Sub(now), k.lease.left(now))
	}
	return k.triesEnd.Sub(now)
}

// publish wakes those who watch the key.
func (k *memoryKey) publish(m Message) {
	for w := range k.watches {
		w.Push(m)
	}
}

// publishFilled tells of the entry b, which rides along if it is small.
func (k *memoryKey) publishFilled(t Token, b []byte) {
	if len(k.watches) == 0 {
		return
	}
	m := Message{Signal: Filled, Token: t}
	if len(b) <= MaxMessageBody {
		m.Body = bytes.Clone(b)
	}
	k.publish(m)
}
