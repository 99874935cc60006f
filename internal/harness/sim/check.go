package sim

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

// A book keeps account of the content of the server and of the promises to callers,
// and tells when a promise is broken. It shares no code with the library that it
// checks.
type book struct {
	keys []string // names of entries

	last     map[string]content // after the last command
	evicted  map[string]int     // step
	granted  map[string]grant   // by token
	sent     map[string]bool    // tokens of acquires that were carried out
	failed   map[string]failing // by token, as Redis accepted it
	stored   map[string]storing // values that were in Redis
	barriers map[string][]*op   // by key or tag: changes that returned nil
	looks    map[look]time.Time // since when a holder was seen to be unwatched
	reloads  []reloading
	lost     map[string]string // by token: how its lease ended while it was held
	holders  map[string]string // in a memory store: the token that holds a key's lease
	beside   int               // fetches that started beside one with a lost lease
	bucket   bucket
}

// A content is the server's data of a key.
type content struct {
	entry []byte
	lease string // token
	ttl   time.Duration
	tries []string // tokens, where fetches are paid for
}

type grant struct {
	key     string
	by      *process
	step    int
	at      time.Time
	watched bool
	ends    time.Time // in a memory store: it is not renewed for longer
}

type failing struct {
	step int
	at   time.Time
}

type storing struct {
	step int
	at   time.Time
}

// A look is a process's at a holder: which of its flights looked isn't known, as
// their questions go together.
type look struct {
	by     *process
	holder string
}

func (w *world) violate(rule, format string, args ...any) {
	if len(w.cfg.Rules) > 0 && !slices.Contains(w.cfg.Rules, rule) {
		return
	}
	v := Violation{rule, w.step(), fmt.Sprintf(format, args...)}
	w.violations = append(w.violations, v)
	w.say("VIOLATION %s: %s", v.Rule, plain(v.Text))
}

func entryName(key string) string { return namespace + ":{" + guardName + ":" + key + "}" }

// userKey is the key of an entry's name.
func userKey(name string) string {
	return strings.TrimSuffix(strings.TrimPrefix(name, namespace+":{"+guardName+":"), "}")
}

func (b *book) init(w *world) {
	*b = book{
		last: map[string]content{}, evicted: map[string]int{}, granted: map[string]grant{}, sent: map[string]bool{},
		failed: map[string]failing{}, stored: map[string]storing{}, barriers: map[string][]*op{}, looks: map[look]time.Time{},
		lost: map[string]string{}, holders: map[string]string{},
	}
	for i := range max(2, w.plan.keys) {
		b.keys = append(b.keys, entryName(fmt.Sprintf("k%d", i)))
	}
}

// look reads the server behind the clients' backs.
func (b *book) look(w *world) map[string]content {
	all := make(map[string]content, len(b.keys))
	if w.memory != nil {
		return all
	}
	for _, key := range b.keys {
		var c content
		if v, err := w.server.Get(key); err == nil {
			c.entry, c.ttl = []byte(v), w.server.TTL(key)
		}
		if v, err := w.server.Get(key + ":lease"); err == nil {
			c.lease = v[:min(len(v), store.TokenSize)]
		}
		if w.plan.budget {
			c.tries, _ = w.server.SMembers(key + ":tries")
		}
		all[key] = c
	}
	return all
}

// carriedOut checks the changes of the commands of a call, each by itself. The given
// content is that of the server before the call.
func (b *book) carriedOut(w *world, c *call, was map[string]content) {
	had := b.last // time has passed since
	for i, is := range c.looks {
		m := c.commands[i]
		for _, key := range b.keys {
			b.changed(w, m, key, had[key], was[key], is[key])
		}
		b.replied(w, m, was)
		had, was = is, is
	}
	b.last = was
}

// changed checks the change of a key by a command.
func (b *book) changed(w *world, m *command, key string, had, was, is content) {
	if is.lease != was.lease || was.lease != had.lease {
		b.leaseChanged(w, m, key, had, was, is)
	}
	if !bytes.Equal(is.entry, was.entry) {
		b.entryChanged(w, m, key, was, is)
	}
	if key != m.key || m.reply() == nil {
		return
	}
	b.exhausted(w, m, was, is)
	switch {
	case m.is("delete") && (is.entry != nil || is.lease != ""):
		w.violate("delete", "after a Delete %s is left", key)
	case (m.is("set") || m.is("expire")) && is.lease != "":
		w.violate("end of lease", "after %s the lease of %s lives", m.c.label, key)
	}
}

// replied takes in the answer to one command.
func (b *book) replied(w *world, m *command, before map[string]content) {
	c, reply := m.c, m.reply()
	switch {
	case reply == nil:
	case m.is("spend"), m.is("settle"):
		b.paid(w, m)
	case m.is("acquire"):
		all, ok := reply.([]any)
		if !ok {
			all = []any{"granted", int64(0), reply, int64(0)} // the short form of a plain grant
		}
		b.asked(w, m, before[m.key], all)
	case m.is("extend") && reply == int64(1):
		// A Reset has forgotten the attempts, that of the holder too.
		if left := w.server.TTL(m.key + ":tries"); left > 0 && left < w.plan.window()-ms {
			w.violate("window", "%s renewed a lease, and its attempts are remembered for %v", c.label, left)
		}
	case m.is("fail") && reply == int64(1):
		b.failed[m.token] = failing{w.step(), time.Now()}
	case m.is("set"), m.is("delete"), m.is("expire"):
		for _, o := range m.changers() {
			o.carriedOut = w.step()
			o.told[userKey(m.key)] = w.step()
		}
	case m.is("tag"):
		for _, o := range m.changers() {
			o.carriedOut = o.start // fetches from then on may count
			o.told[tagOf(m.arg(5))] = w.step()
		}
	}
}

// leaseChanged judges how a lease came or went: was and is are before and after
// the call, had is after the call before that.
func (b *book) leaseChanged(w *world, m *command, key string, had, was, is content) {
	c := m.c
	if had.lease != "" && was.lease == "" {
		b.lost[had.lease] = "expired"
		if b.evicted[key] != 0 {
			b.lost[had.lease] = "evicted or expired"
		}
		g := b.granted[had.lease]
		if w.plan.calm && b.evicted[key] < g.step && w.fetchOf(had.lease) != nil && !b.overtaken(had.lease) {
			w.violate("calm", "the lease %s of %s expired though nothing was wrong", w.tokenName(had.lease), key)
		}
	}
	if is.lease == was.lease {
		return
	}
	if is.lease == "" {
		own := m.token == was.lease && (m.is("fill") || m.is("fail") || m.is("release"))
		change := m.key == key && (m.is("set") || m.is("delete") || m.is("expire"))
		if !own && !change {
			w.violate("fence", "%s ended the lease %s of %s", c.label, w.tokenName(was.lease), key)
		}
		if change {
			b.lost[was.lease] = m.name
		}
		return
	}
	if !m.is("acquire") || m.token != is.lease || m.key != key {
		w.violate("fence", "%s made %s the lease of %s", c.label, w.tokenName(is.lease), key)
		return
	}
	if was.lease == "" {
		return
	}
	b.lost[was.lease] = "replaced"
	holder := b.granted[was.lease]
	switch suspect, over := m.arg(4), m.arg(5); was.lease {
	case suspect:
		since, looked := b.looks[look{c.n.owner, suspect}]
		if holder.by.watched() || !looked || time.Since(since) < 50*ms {
			w.violate("takeover", "p%d took the lease %s of %s over, whose process is watched=%v, and was looked at %v",
				c.n.proc, w.tokenName(was.lease), key, holder.by.watched(), looked)
		}
		if w.plan.calm {
			w.violate("calm", "a takeover though nothing was wrong")
		}
	case over:
		if f := w.fetchOf(was.lease); f != nil || holder.by != c.n.owner {
			w.violate("takeover", "p%d replaced %s, which is no orphan of its own", c.n.proc, w.tokenName(was.lease))
		}
	default:
		w.violate("fence", "%s replaced the lease %s of %s", c.label, w.tokenName(was.lease), key)
	}
}

// overtaken reports whether the process of a lease was granted another lease of the
// key before, which a change has ended. If the answer to that one arrives last, the
// ledger of package cache takes it for the newer one, and no longer renews the lease
// that is held. That costs a fetch, and no wrong value.
func (b *book) overtaken(token string) bool {
	g := b.granted[token]
	for other, before := range b.granted {
		if other != token && before.key == g.key && before.by == g.by && before.step < g.step && b.lost[other] != "" {
			return true
		}
	}
	return false
}

// fetchOf is the fetch that runs under a lease, in a process that lives, and
// that the guard still waits for.
func (w *world) fetchOf(token string) *fetch {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.running {
		if f.token == token && f.op.p.up() && f.ctx.Err() == nil {
			return f
		}
	}
	return nil
}

// entryChanged judges the entry that a call stored: it is the only place where a late
// write could show.
func (b *book) entryChanged(w *world, m *command, key string, was, is content) {
	c := m.c
	if is.entry == nil {
		if m.key != key || !m.is("delete") {
			w.violate("P2", "%s removed the entry of %s", c.label, key)
		}
		return
	}
	e, err := parse(is.entry)
	if err != nil {
		w.violate("P2", "%s damaged the entry of %s: %v", c.label, key, err)
		return
	}
	version := string(e.Version[:])
	switch {
	case m.key != key:
		w.violate("P2", "%s changed the entry of %s", c.label, key)
	case m.is("expire"):
		if was.entry == nil || !bytes.Equal(was.entry[:19], is.entry[:19]) || !bytes.Equal(was.entry[20:], is.entry[20:]) {
			w.violate("P2", "%s changed more than a flag", c.label)
		}
		return
	case m.is("set"):
	case m.is("fill"):
		if was.lease != version || m.token != version {
			w.violate("P2", "%s stored %s while the lease of %s was %s", c.label, w.tokenName(version), key, w.tokenName(was.lease))
		}
	default:
		w.violate("P2", "%s stored something", c.label)
	}
	if e.Kind == store.Value {
		text := string(e.Payload)
		b.stored[text] = storing{w.step(), time.Now()}
		if name, ok := strings.CutPrefix(text, userKey(key)+" fetch "); ok {
			f := w.fetchNamed(name)
			if f == nil || f.private || f.token != version && w.renewal(text, version) == nil && !w.mixedUp(f, version) {
				w.violate("P2", "%q was stored with the version %s", text, w.tokenName(version))
			}
		}
	}
}

// mixedUp reports whether it was another fetch of the same GetMany for the same key
// that was taken to have the lease, and puts that right: which of two that start
// one after the other has it, their order doesn't always tell (see [op.lease]).
func (w *world) mixedUp(f *fetch, token string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.fetches {
		if f.op.kind == getMany && f.token == "" && other.token == token && other.op == f.op && other.key == f.key {
			f.token, other.token = token, ""
			return true
		}
	}
	return false
}

func (w *world) fetchNamed(name string) *fetch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fetches[name]
}

// asked checks the answer of an acquire.
func (b *book) asked(w *world, m *command, was content, reply []any) {
	c, now := m.c, time.Now()
	switch reply[0] {
	case "held":
		holder := reply[1].(string)
		l := look{c.n.owner, holder}
		if _, looked := b.looks[l]; !looked && reply[3] == int64(1) {
			b.looks[l] = now
		}
	case "granted":
		if b.sent[m.token] {
			w.violate("token", "the token %s was granted twice", w.tokenName(m.token))
		}
		if liveness := m.arg(9) == "1"; liveness && !c.n.owner.watched() {
			w.violate("unsubscribed", "%s was granted a lease, and its process is not subscribed", c.label)
		}
		b.granted[m.token] = grant{m.key, c.n.owner, w.step(), now, m.arg(9) == "1", time.Time{}}
		if f, ok := b.failed[m.arg(3)]; ok && now.Sub(f.at) < 5*time.Second {
			w.violate("P8", "%s was granted a lease though it had waited for %s, whose fetch failed", c.label, w.tokenName(m.arg(3)))
		}
		if was.entry != nil {
			e, err := parse(was.entry)
			if fresh := err == nil && e.Flags&store.FlagExpired == 0 && e.TTL-was.ttl < e.FreshFor; fresh && m.arg(2) != string(e.Version[:]) {
				w.violate("P1", "%s was granted a lease though a fresh entry is stored", c.label)
			}
		}
	}
	b.sent[m.token] = true
}

// usable is for how long the stored entry could still stand in for a fetch.
func (c content) usable() time.Duration {
	e, err := parse(c.entry)
	if err != nil || e.Kind != store.Value || e.FreshFor == 0 || e.TTL <= e.FreshFor {
		return 0
	}
	return c.ttl
}

// parse reads an entry.
func parse(b []byte) (*store.Entry, error) {
	e := &store.Entry{}
	return e, e.Parse(b)
}
