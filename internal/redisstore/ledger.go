package redisstore

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// The states of a token that this process has drawn.
type tokenState byte

const (
	asked      tokenState = iota // its acquire is under way
	held                         // it was granted, and is renewed
	lost                         // it was granted, is gone, and is yet to be given back
	giving                       // its fill or fail is under way
	unanswered                   // an acquire, fill or fail of it was never answered
)

// A ledger keeps the tokens of this process that may be a lease in Redis. It knows
// nothing of entries.
type ledger struct {
	mu     sync.Mutex
	tokens map[store.Token]*record
	byKey  map[string]*record // the token that holds each key
	next   time.Time          // when the renewal looks again
	swept  time.Time          // when unanswered tokens were last forgotten
	wake   chan struct{}      // a lease was added that is due before that
}

type record struct {
	token store.Token
	key   string
	state tokenState
	lease *store.Lease // while held or giving

	ttl, window time.Duration
	due         time.Time // next renewal
	until       time.Time // renewal ends; or: an unanswered token is forgotten
	expires     time.Time // the lease is gone by then unless it was renewed
}

// owned is a token to be released.
type owned struct {
	key   string
	token store.Token
}

func newLedger() *ledger {
	return &ledger{tokens: map[store.Token]*record{}, byKey: map[string]*record{}, wake: make(chan struct{}, 1)}
}

// ask notes that an acquire with the record's token is about to be sent.
func (l *ledger) ask(r *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tokens[r.token] = r
}

// grant turns an asked token into a held lease, sent being the time before its
// acquire was sent. An older lease of the same key is gone if there is a newer.
//
// It answers false if Close has released the token meanwhile.
func (l *ledger) grant(lease *store.Lease, sent time.Time, renewFor time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.tokens[lease.Token]
	if r == nil || r.state != asked {
		return false
	}
	r.state, r.lease = held, lease
	r.due, r.expires, r.until = sent.Add(r.ttl/3), sent.Add(r.ttl), sent.Add(renewFor)
	if old := l.byKey[lease.Key]; old != nil && old.state == held {
		l.loseRecord(old)
	}
	l.byKey[lease.Key] = r
	if r.due.Before(l.next) {
		l.next = r.due
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// give notes that the lease's fill or fail is about to be sent: from now on it
// isn't renewed. It returns the lease's TTL; 0 if the token isn't known.
func (l *ledger) give(t store.Token) (ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.tokens[t]
	if r == nil {
		return 0
	}
	r.state = giving
	return r.ttl
}

// gives reports whether the lease is on its way back.
func (l *ledger) gives(t store.Token) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.tokens[t]
	return r != nil && r.state == giving
}

// forget drops a token that Redis has answered about: not granted, or given back.
func (l *ledger) forget(t store.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(t)
}

func (l *ledger) drop(t store.Token) {
	r := l.tokens[t]
	if r == nil {
		return
	}
	delete(l.tokens, t)
	if l.byKey[r.key] == r {
		delete(l.byKey, r.key)
	}
}

// lose notes that a held lease is gone. The token stays until it is given back:
// that strikes its attempt from the record, or a process that is closed with a
// lost lease would look as if it had died.
func (l *ledger) lose(t store.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.tokens[t]; r != nil && r.state == held {
		l.loseRecord(r)
	}
}

func (l *ledger) loseRecord(r *record) {
	r.state = lost
	r.lease.Lose()
	if l.byKey[r.key] == r {
		delete(l.byKey, r.key)
	}
}

// holder is the token that holds key in this process, or zero.
func (l *ledger) holder(key string) store.Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.byKey[key]; r != nil {
		return r.token
	}
	return store.Token{}
}

// holds reports whether this process holds a lease.
func (l *ledger) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byKey) > 0
}

// sweepEvery is the shortest time between two looks through all tokens for those to forget.
const sweepEvery = time.Second

// leave keeps the token in mind, for as long as it counts as an attempt: its
// command was sent, and never answered.
func (l *ledger) leave(t store.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.tokens[t]
	if r == nil {
		return
	}
	if l.byKey[r.key] == r {
		delete(l.byKey, r.key)
	}
	now := time.Now()
	r.state, r.until = unanswered, now.Add(r.window)
	if now.Sub(l.swept) < sweepEvery {
		return // a call for many keys leaves all of its tokens, one after the other
	}
	l.swept = now
	for t, r := range l.tokens {
		if r.state == unanswered && now.After(r.until) {
			delete(l.tokens, t)
		}
	}
}

// orphan reports whether no caller uses the token, which is of this process and holds a
// lease in Redis: its grant was never answered.
func (l *ledger) orphan(t store.Token) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.tokens[t]
	return r == nil || r.state == unanswered
}

// held and unanswered list the leases that Close has to give back.
func (l *ledger) held() []owned {
	return l.list(func(r *record) bool { return r.state == held || r.state == lost || r.state == giving })
}

func (l *ledger) unanswered() []owned {
	return l.list(func(*record) bool { return true })
}

// list is in the order in which the tokens were drawn.
func (l *ledger) list(want func(*record) bool) []owned {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []owned
	for t, r := range l.tokens {
		if want(r) {
			all = append(all, owned{r.key, t})
		}
	}
	slices.SortFunc(all, func(a, b owned) int { return bytes.Compare(a.token[:], b.token[:]) })
	return all
}

// A renewal is one lease that is due.
type renewal struct {
	key         string
	token       store.Token
	ttl, window time.Duration
}

// due returns the leases to renew at the time now, those that can wait no longer than
// slack included, and how long it is until the next. A lease that has run out meanwhile
// (the process was frozen, or Redis away) is lost.
func (l *ledger) due(now time.Time, slack time.Duration) (batch []renewal, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next = time.Hour
	for t, r := range l.tokens {
		switch {
		case r.state != held:
		case now.After(r.expires):
			l.loseRecord(r)
		case now.After(r.until):
			// The lease is not renewed any more; its end is noticed above.
			next = min(next, r.expires.Sub(now)+time.Millisecond)
		case r.due.Sub(now) <= slack:
			batch = append(batch, renewal{r.key, t, r.ttl, r.window})
			// The next try, should this one fail; renewed corrects it.
			r.due = now.Add(r.ttl / 6)
			next = min(next, r.ttl/6)
		default:
			next = min(next, r.due.Sub(now))
		}
	}
	l.next = now.Add(next)
	return batch, next
}

// renewed notes that the lease was extended by a command sent at the given time.
func (l *ledger) renewed(t store.Token, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.tokens[t]; r != nil && r.state == held {
		r.due, r.expires = sent.Add(r.ttl/3), sent.Add(r.ttl)
	}
}
