package sim

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// A book keeps account of what the server was seen to hold and of what was
// promised to whom, and says when a promise is broken. It shares no code with
// what it checks.
type book struct {
	keys []string // names of entries

	last     map[string]content // after the last command
	evicted  map[string]int     // step
	granted  map[string]grant   // by token
	sent     map[string]bool    // tokens of acquires that were carried out
	failed   map[string]failing // by token, as Redis accepted it
	stored   map[string]storing // values that were in Redis
	barriers map[string][]*op   // by key: Set, Delete and Expire that returned nil
	looks    map[look]time.Time // since when a holder was seen to be unwatched
	paused   bool               // some fetch asked for a pause
	lost     map[string]string  // by token: how its lease ended while it was held
	beside   int                // fetches that started beside one whose lease was lost
}

// A content is what the server holds for a key.
type content struct {
	entry []byte
	lease string // token
	ttl   time.Duration
}

type grant struct {
	key     string
	by      *process
	step    int
	at      time.Time
	watched bool
}

type failing struct {
	step int
	at   time.Time
}

type storing struct {
	step int
	at   time.Time
}

// A look is a flight's at a holder.
type look struct {
	op     *op
	holder string
}

// outside are the rules that need no look into the server.
var outside = []string{"P3", "P4", "P4 returns", "P7", "sharing", "value", "private", "age", "error", "old failure"}

func (w *world) violate(rule, format string, args ...any) {
	if w.cfg.Outside && !slices.Contains(outside, rule) {
		return
	}
	v := Violation{rule, w.step(), fmt.Sprintf(format, args...)}
	w.violations = append(w.violations, v)
	w.say("VIOLATION %s: %s", v.Rule, plain(v.Text))
}

func entryName(key string) string { return namespace + ":{" + guardName + ":" + key + "}" }

func (b *book) init() {
	*b = book{
		last: map[string]content{}, evicted: map[string]int{}, granted: map[string]grant{}, sent: map[string]bool{},
		failed: map[string]failing{}, stored: map[string]storing{}, barriers: map[string][]*op{}, looks: map[look]time.Time{},
		lost: map[string]string{},
	}
	for i := range 2 {
		b.keys = append(b.keys, entryName(fmt.Sprintf("k%d", i)))
	}
}

// look reads the server behind the clients' backs.
func (b *book) look(w *world) map[string]content {
	all := make(map[string]content, len(b.keys))
	for _, key := range b.keys {
		var c content
		if v, err := w.server.Get(key); err == nil {
			c.entry, c.ttl = []byte(v), w.server.TTL(key)
		}
		if v, err := w.server.Get(key + ":lease"); err == nil {
			c.lease = v[:min(len(v), cache.TokenSize)]
		}
		all[key] = c
	}
	return all
}

// carriedOut checks what one call changed.
func (b *book) carriedOut(w *world, c *call, before, after map[string]content) {
	for _, key := range b.keys {
		was, is, had := before[key], after[key], b.last[key]
		if is.lease != was.lease || was.lease != had.lease {
			b.leaseChanged(w, c, key, had, was, is)
		}
		if !bytes.Equal(is.entry, was.entry) {
			b.entryChanged(w, c, key, was, is)
		}
		if key != c.key || c.reply() == nil {
			continue
		}
		switch {
		case c.is("delete") && (is.entry != nil || is.lease != ""):
			w.violate("delete", "after a Delete %s is left", key)
		case (c.is("set") || c.is("expire")) && is.lease != "":
			w.violate("end of lease", "after %s the lease of %s lives", c.label, key)
		}
	}
	b.last = after
	reply := c.reply()
	switch {
	case reply == nil:
	case c.is("acquire"):
		b.asked(w, c, before[c.key], reply.([]any))
	case c.is("fail") && reply == int64(1):
		b.failed[c.token] = failing{w.step(), time.Now()}
	case c.is("set"), c.is("delete"), c.is("expire"):
		if c.op != nil {
			c.op.carriedOut = w.step()
		}
	}
}

// leaseChanged judges how a lease came or went: was and is are before and after
// the call, had is after the call before that.
func (b *book) leaseChanged(w *world, c *call, key string, had, was, is content) {
	if had.lease != "" && was.lease == "" {
		b.lost[had.lease] = "expired"
		if b.evicted[key] != 0 {
			b.lost[had.lease] = "evicted or expired"
		}
		g := b.granted[had.lease]
		if w.plan.calm && b.evicted[key] < g.step && w.fetchOf(had.lease) != nil {
			w.violate("calm", "the lease %s of %s expired though nothing was wrong", w.tokenName(had.lease), key)
		}
	}
	if is.lease == was.lease {
		return
	}
	if is.lease == "" {
		own := c.token == was.lease && (c.is("fill") || c.is("fail") || c.is("release"))
		change := c.key == key && (c.is("set") || c.is("delete") || c.is("expire"))
		if !own && !change {
			w.violate("fence", "%s ended the lease %s of %s", c.label, w.tokenName(was.lease), key)
		}
		if change {
			b.lost[was.lease] = c.names[0]
		}
		return
	}
	if !c.is("acquire") || c.token != is.lease || c.key != key {
		w.violate("fence", "%s made %s the lease of %s", c.label, w.tokenName(is.lease), key)
		return
	}
	if was.lease == "" {
		return
	}
	b.lost[was.lease] = "replaced"
	holder := b.granted[was.lease]
	switch suspect, over := c.arg(4), c.arg(5); was.lease {
	case suspect:
		since, looked := b.looks[look{c.op, suspect}]
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

// entryChanged judges what a call stored: it is the only place where a late
// write could show.
func (b *book) entryChanged(w *world, c *call, key string, was, is content) {
	if is.entry == nil {
		if c.key != key || !c.is("delete") {
			w.violate("P2", "%s removed the entry of %s", c.label, key)
		}
		return
	}
	e, err := cache.ParseEntry(is.entry)
	if err != nil {
		w.violate("P2", "%s damaged the entry of %s: %v", c.label, key, err)
		return
	}
	version := string(e.Version[:])
	switch {
	case c.key != key:
		w.violate("P2", "%s changed the entry of %s", c.label, key)
	case c.is("expire"):
		if was.entry == nil || !bytes.Equal(was.entry[:19], is.entry[:19]) || !bytes.Equal(was.entry[20:], is.entry[20:]) {
			w.violate("P2", "%s changed more than a flag", c.label)
		}
		return
	case c.is("set"):
	case c.is("fill"):
		if was.lease != version || c.token != version {
			w.violate("P2", "%s stored %s while the lease of %s was %s", c.label, w.tokenName(version), key, w.tokenName(was.lease))
		}
	default:
		w.violate("P2", "%s stored something", c.label)
	}
	if e.Kind == cache.Value {
		text := string(e.Payload)
		b.stored[text] = storing{w.step(), time.Now()}
		if name, ok := strings.CutPrefix(text, strings.TrimSuffix(strings.TrimPrefix(key, namespace+":{"+guardName+":"), "}")+" fetch "); ok {
			if f := w.fetchNamed(name); f == nil || f.token != version || f.private {
				w.violate("P2", "%q was stored with the version %s", text, w.tokenName(version))
			}
		}
	}
}

func (w *world) fetchNamed(name string) *fetch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fetches[name]
}

// asked checks the answer of an acquire.
func (b *book) asked(w *world, c *call, was content, reply []any) {
	now := time.Now()
	switch reply[0] {
	case "held":
		holder := reply[1].(string)
		if c.op != nil {
			l := look{c.op, holder}
			if reply[3] == int64(0) {
				delete(b.looks, l)
			} else if _, ok := b.looks[l]; !ok {
				b.looks[l] = now
			}
		}
	case "granted":
		if b.sent[c.token] {
			w.violate("token", "the token %s was granted twice", w.tokenName(c.token))
		}
		b.granted[c.token] = grant{c.key, c.n.owner, w.step(), now, c.arg(9) == "1"}
		if f, ok := b.failed[c.arg(3)]; ok && now.Sub(f.at) < 5*time.Second {
			w.violate("P8", "%s was granted a lease though it had waited for %s, whose fetch failed", c.label, w.tokenName(c.arg(3)))
		}
		if was.entry != nil {
			e, err := cache.ParseEntry(was.entry)
			if fresh := err == nil && e.Flags&cache.FlagExpired == 0 && e.TTL-was.ttl < e.FreshFor; fresh && c.arg(2) != string(e.Version[:]) {
				w.violate("P1", "%s was granted a lease though a fresh entry is stored", c.label)
			}
		}
	}
	b.sent[c.token] = true
}

// noticeProcesses notes who can't be seen to live.
func (w *world) noticeProcesses() {
	for _, p := range w.processes {
		if !p.crashed && !p.leaving && !p.watched() {
			p.lastDown = w.step()
		}
	}
}

// noticeFetches checks the fetches that have started.
func (w *world) noticeFetches() {
	w.mu.Lock()
	news := w.news
	w.news = nil
	running := slices.Clone(w.running)
	w.mu.Unlock()
	b := &w.book
	for _, f := range news {
		if f.token == "" {
			if w.plan.calm && w.plan.private == 0 {
				w.violate("calm", "fetch %s runs without a lease though nothing was wrong", f.name)
			}
			continue
		}
		for _, other := range running {
			if other == f || other.key != f.key || other.token == "" || w.fetchOf(other.token) == nil {
				continue
			}
			if b.lost[other.token] == "" && b.lost[f.token] == "" {
				w.violate("P1", "fetch %s of %s starts beside %s, whose lease %s was not lost", f.name, f.key, other.name, w.tokenName(other.token))
			}
			b.beside++
		}
	}
}

// noticeReturns judges what callers were given.
func (w *world) noticeReturns() {
	for _, o := range w.ops {
		if o.judged || !w.done(o) {
			continue
		}
		o.judged = true
		if o.forgotten {
			continue
		}
		w.book.returned(w, o)
	}
}

func (b *book) returned(w *world, o *op) {
	if !o.deadline.IsZero() && o.took.After(o.deadline) {
		w.violate("P4", "%v returned %v after its deadline", o, o.took.Sub(o.deadline))
	}
	switch {
	case o.err != nil:
		b.gaveError(w, o)
	case o.kind == get || o.kind == peek:
		b.gaveValue(w, o)
	case o.kind == set || o.kind == del || o.kind == expire:
		if o.carriedOut == 0 {
			w.violate("P3", "%v returned nil, and Redis has never seen it", o)
		}
		b.barriers[o.key] = append(b.barriers[o.key], o)
	}
}

// gaveValue checks a value against the changes that had returned before its
// caller came.
func (b *book) gaveValue(w *world, o *op) {
	from, what := 0, ""
	rest, ok := strings.CutPrefix(o.value, o.key+" ")
	name, isFetch := strings.CutPrefix(rest, "fetch ")
	f := w.fetchNamed(name)
	switch {
	case ok && isFetch && f != nil:
		from, what = f.start, "whose fetch started"
	case ok && strings.HasPrefix(rest, "set o"):
		for _, s := range w.ops {
			if s.kind == set && rest == "set "+s.String() {
				from, what = s.carriedOut, "which was set"
			}
		}
	}
	if from == 0 {
		w.violate("value", "%v of %s was given %q", o, o.key, o.value)
		return
	}
	for _, c := range b.barriers[o.key] {
		// Expire is a barrier only where nothing stale may be served; Peek does.
		if c.kind == expire && (o.kind == peek || w.plan.policy.Stale+w.plan.policy.StaleIfError > 0) {
			continue
		}
		if c.end < o.start && from < c.carriedOut {
			w.violate("P3", "%v, which started at step %d after %v (%v) had returned at step %d, was given %q, %s at step %d, before that %v was carried out at step %d",
				o, o.start, c, c.kind, c.end, o.value, what, from, c.kind, c.carriedOut)
		}
	}
	s, stored := b.stored[o.value]
	if !stored && o.start > from {
		w.violate("sharing", "%v, which came at step %d, was given %q, which was never stored, and %s at step %d", o, o.start, o.value, what, from)
	}
	if f != nil && f.private && f.op != o {
		w.violate("private", "%v was given the private value of %v", o, f.op)
	}
	y := w.plan.policy
	oldest := y.TTL + max(y.Stale, y.StaleIfError) + ms
	if stored && o.began.Sub(s.at) > oldest {
		w.violate("age", "%v was given %q, stored %v before it came, and values last %v", o, o.value, o.began.Sub(s.at), oldest)
	}
}

// nameless are the errors that don't name a fetch: the guard's own.
var nameless = []string{
	guard.ErrUnavailable.Error(), guard.ErrWaitTimeout.Error(), guard.ErrFetchTimeout.Error(),
	guard.ErrNotFound.Error(), guard.ErrGoexit.Error(),
}

// gaveError checks that an error has a reason.
func (b *book) gaveError(w *world, o *op) {
	err := o.err
	switch {
	case !o.deadline.IsZero() && !o.took.Before(o.deadline):
		return // its own
	case errors.Is(err, guard.ErrQuarantined):
		b.quarantined(w, o)
		return
	case errors.Is(err, guard.ErrClosed):
		if !o.p.leaving {
			w.violate("error", "%v was told that its guard is closed, which it is not", o)
		}
		return
	case errors.Is(err, guard.ErrMiss) && o.kind == peek:
		return
	}
	if w.plan.calm && (errors.Is(err, guard.ErrUnavailable) || errors.Is(err, guard.ErrWaitTimeout) || errors.Is(err, guard.ErrFetchTimeout)) {
		w.violate("calm", "%v was told %v though nothing was wrong", o, err)
	}
	_, name, ok := strings.Cut(plain(err.Error()), o.key+" fetch ")
	if !ok {
		if !slices.ContainsFunc(nameless, func(text string) bool { return strings.Contains(err.Error(), text) }) {
			w.violate("error", "%v of %s was given an error that nobody made: %v", o, o.key, err)
		}
		return
	}
	name, _, _ = strings.Cut(name, " ")
	f := w.fetchNamed(name)
	if f == nil {
		w.violate("error", "%v was given the error of another key: %v", o, err)
		return
	}
	// A failure is for those who waited for it. Those who came later get it only
	// during a pause, or if "not found" was stored.
	if f.ending == retryAfter || f.ending == notFound || w.plan.policy.Stale+w.plan.policy.StaleIfError > 0 {
		return
	}
	if told, ok := b.failed[f.token]; ok && told.step < o.start {
		w.violate("old failure", "%v, which came at step %d, was given a failure that was told at step %d: %v", o, o.start, told.step, err)
	} else if !ok && f.start < o.start && f.token == "" {
		w.violate("old failure", "%v, which came at step %d, was given the failure of a fetch that started at step %d without a lease: %v", o, o.start, f.start, err)
	}
}

// quarantined checks that so many processes died, or could not be seen.
func (b *book) quarantined(w *world, o *op) {
	could := map[*process]bool{}
	for _, g := range b.granted {
		if g.key != entryName(o.key) {
			continue
		}
		if p := g.by; p.crashed || p.lastDown >= o.start || p.leaving && (!p.isClosed() || p.closing != nil) {
			could[p] = true
		}
	}
	if len(could) < w.plan.policy.MaxAttempts {
		w.violate("P7", "%v was told of a quarantine, and only %d processes that tried can have seemed dead, of %d", o, len(could), w.plan.policy.MaxAttempts)
	}
}

// closed checks what is left in the server when all processes are gone.
func (b *book) closed(w *world) {
	left := func(key, what, token string) {
		w.mu.Lock()
		p := w.byName[token[:8]]
		w.mu.Unlock()
		if p == nil || !p.crashed && p.closing == nil {
			w.violate("left behind", "%s %s of %s, whose process left in order", what, w.tokenName(token), key)
		}
	}
	for _, key := range b.keys {
		if v, err := w.server.Get(key + ":lease"); err == nil {
			left(key, "the lease", v[:cache.TokenSize])
		}
		tries, _ := w.server.SMembers(key + ":tries")
		for _, t := range tries {
			left(key, "the attempt", t)
		}
	}
}
