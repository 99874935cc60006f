package sim

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// inMemory puts the memory store in the place of Redis. It has no network and no
// processes that die, and it forgets nothing before its time.
func (p *plan) inMemory() {
	p.memory = true
	p.trouble = min(p.trouble, 10)
	p.troubles = []trouble{freeze, leaveInOrder}
}

// The book looks into Redis after each command. Of a memory store it knows the
// reports of the gate.

// memoryKey is a key as users name it, of one that the store knows.
func memoryKey(key string) string { return strings.TrimPrefix(key, guardName+":") }

// answeredInMemory takes in the answer to an acquire.
func (b *book) answeredInMemory(p *process, r *store.Request, a *store.Answer) {
	if a.Verdict != store.Granted {
		return
	}
	w, token, key := p.w, string(a.Lease.Token[:]), r.Key
	name := entryName(memoryKey(key))
	if b.sent[token] {
		w.violate("token", "the token %s was granted twice", w.tokenName(token))
	}
	if f, ok := b.failed[string(r.LastHeld[:])]; ok && time.Since(f.at) < 5*time.Second {
		w.violate("P8", "p%d was granted a lease of %s though it had waited for %s, whose fetch failed", p.id, key, w.tokenName(string(r.LastHeld[:])))
	}
	held := b.holders[name]
	if held != "" && !time.Now().Before(b.granted[held].ends) {
		b.lost[held], held = "expired", ""
	}
	if held != "" && w.fetchOf(held) != nil {
		w.violate("fence", "p%d was granted a lease of %s, and %s is held", p.id, key, w.tokenName(held))
	}
	b.sent[token] = true
	b.holders[name] = token
	now := time.Now()
	b.granted[token] = grant{name, p, w.step(), now, true, now.Add(r.RenewFor + r.TTL)}
}

// returnedInMemory takes in the end of a lease.
func (b *book) returnedInMemory(w *world, r *store.Return, done store.Returned) {
	token := string(r.Lease.Token[:])
	name := entryName(memoryKey(r.Lease.Key))
	held := b.holders[name] == token
	if held {
		delete(b.holders, name)
	}
	switch {
	case !done.OK:
	case r.Entry != nil && !held:
		w.violate("P2", "%q was stored under the lease %s of %s, which was not held", r.Entry.Payload, w.tokenName(token), name)
	case r.Entry != nil && r.Entry.Kind == store.Value:
		b.stored[string(r.Entry.Payload)] = storing{w.step(), time.Now()}
	case r.Failed:
		b.failed[token] = failing{w.step(), time.Now()}
	}
}

// changedInMemory takes in a change of a key or a tag by an op. There is an entry for
// the value of a Set.
func (b *book) changedInMemory(w *world, o *op, name string, stored *store.Entry, endsLease bool) {
	if stored != nil {
		b.stored[string(stored.Payload)] = storing{w.step(), time.Now()}
	}
	if o != nil {
		o.carriedOut = w.step()
		o.told[memoryKey(name)] = w.step()
		if !endsLease {
			o.carriedOut = o.start // see book.replied
		}
	}
	if entry := entryName(memoryKey(name)); endsLease && b.holders[entry] != "" {
		b.lost[b.holders[entry]] = "a queued change"
		if o != nil {
			b.lost[b.holders[entry]] = o.kind.String()
		}
		delete(b.holders, entry)
	}
}

// noticeGivenUp takes in the leases that a gate has given back by itself.
func (w *world) noticeGivenUp() {
	w.mu.Lock()
	all := w.givenUp
	w.givenUp = nil
	w.mu.Unlock()
	for _, token := range all {
		w.book.lost[token] = "given up"
		maps.DeleteFunc(w.book.holders, func(_, held string) bool { return held == token })
	}
}

// closedInMemory checks that no lease and no attempt is left.
func (b *book) closedInMemory(w *world) {
	admin := w.memory.Join()
	defer admin.Close()
	in := admin.Unwrap()
	for _, name := range b.keys {
		key := guardName + ":" + userKey(name)
		if err := in.Change(context.Background(), []store.Change{{Kind: store.Delete, Key: key}})[0]; err != nil {
			w.violate("left behind", "%s: %v", key, err)
		}
		a := in.Acquire(context.Background(), []store.Request{{Key: key, TTL: time.Second, RenewFor: time.Second, Window: time.Minute}})[0]
		switch {
		case a.Err != nil:
			w.violate("left behind", "%s: %v", key, a.Err)
		case a.Verdict == store.Paused:
		case a.Verdict != store.Granted || a.Lease.Attempt != 1:
			w.violate("left behind", "the next to ask for %s is answered %v, %+v", key, a.Verdict, a.Lease)
		}
	}
}
