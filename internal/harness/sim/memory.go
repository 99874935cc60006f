package sim

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// inMemory puts the memory store in the place of Redis. It has no network and no
// processes that die, and it forgets nothing before its time.
func (p *plan) inMemory() {
	p.memory = true
	p.trouble = min(p.trouble, 10)
	p.troubles = []trouble{freeze, leaveInOrder}
}

// The book looks into Redis after each command. Of a memory store it knows what the
// gate tells.

// memoryKey is a key as users name it, of one that the store knows.
func memoryKey(key string) string { return strings.TrimPrefix(key, guardName+":") }

// answeredInMemory takes in the answer to an acquire.
func (b *book) answeredInMemory(p *process, key string, ask *cache.Ask, a *cache.Answer) {
	if a.Verdict != cache.Granted {
		return
	}
	w, token := p.w, string(a.Lease.Token[:])
	name := entryName(memoryKey(key))
	if b.sent[token] {
		w.violate("token", "the token %s was granted twice", w.tokenName(token))
	}
	if f, ok := b.failed[string(ask.LastHeld[:])]; ok && time.Since(f.at) < 5*time.Second {
		w.violate("P8", "p%d was granted a lease of %s though it had waited for %s, whose fetch failed", p.id, key, w.tokenName(string(ask.LastHeld[:])))
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
	b.granted[token] = grant{name, p, w.step(), now, true, now.Add(ask.RenewFor + ask.TTL)}
}

// returnedInMemory takes in what became of a lease.
func (b *book) returnedInMemory(w *world, r *cache.Return, done cache.Returned) {
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
	case r.Entry != nil && r.Entry.Kind == cache.Value:
		b.stored[string(r.Entry.Payload)] = storing{w.step(), time.Now()}
	case r.Failed:
		b.failed[token] = failing{w.step(), time.Now()}
	}
}

// changedInMemory takes in a change of keys or tags by an op.
func (b *book) changedInMemory(w *world, o *op, what string, names []string, stores string) {
	if stores != "" {
		b.stored[stores] = storing{w.step(), time.Now()}
	}
	for _, name := range names {
		if o != nil {
			o.carriedOut = w.step()
			o.told[memoryKey(name)] = w.step()
			if o.kind == delTag || o.kind == expireTag {
				o.carriedOut = o.start // see book.replied
			}
		}
		if entry := entryName(memoryKey(name)); what == "set" || what == "delete" || what == "expire" {
			if held := b.holders[entry]; held != "" {
				b.lost[held] = what
				delete(b.holders, entry)
			}
		}
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
	for _, name := range b.keys {
		key := guardName + ":" + userKey(name)
		if err := admin.Delete(context.Background(), key); err != nil {
			w.violate("left behind", "%s: %v", key, err)
		}
		a, err := admin.Acquire(context.Background(), key, cache.Ask{TTL: time.Second, RenewFor: time.Second, Window: time.Minute})
		switch {
		case err != nil:
			w.violate("left behind", "%s: %v", key, err)
		case a.Verdict == cache.Paused:
		case a.Verdict != cache.Granted || a.Lease.Attempt != 1:
			w.violate("left behind", "the next to ask for %s is answered %v, %+v", key, a.Verdict, a.Lease)
		}
	}
}
