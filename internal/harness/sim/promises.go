package sim

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
)

// noticeProcesses notes the processes that can't be seen to live.
func (w *world) noticeProcesses() {
	for _, p := range w.processes {
		if !p.crashed && !p.isClosed() && !p.watched() {
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
		b.spent(w, f)
		if f.token == "" {
			if w.plan.calm && w.plan.private == 0 && !w.queued(f.op.p, f.key) {
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

// queued reports whether the process has queued a change of the key or of a tag that its
// values carry, as a caller's deadline cut its call off. Until that change is carried out the
// process counts Redis as away.
func (w *world) queued(p *process, key string) bool {
	names := append(tagsOf(key), key)
	return slices.ContainsFunc(w.ops, func(o *op) bool {
		return o.p == p && slices.Contains(names, o.key) && w.done(o) && errors.Is(o.err, guard.ErrQueued)
	})
}

// noticeReturns judges the results of callers.
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
	waited := o.took
	if !o.turnAt.IsZero() {
		waited = o.turnAt
	}
	if !o.deadline.IsZero() && waited.After(o.deadline) {
		w.violate("P4", "%v returned %v after its deadline", o, waited.Sub(o.deadline))
	}
	if o.kind == get && o.turnAt.IsZero() {
		b.tooPatient(w, o)
	}
	if o.turnAt.IsZero() {
		b.waitedForRedis(w, o)
	}
	switch {
	case o.kind == getMany:
		b.gaveMany(w, o)
	case o.err != nil:
		b.gaveError(w, o, o.key, o.err)
	case o.kind == get || o.kind == peek || o.kind == reload:
		b.gaveValue(w, o, o.key, o.value)
	case o.kind != reset:
		if o.carriedOut == 0 {
			w.violate("P3", "%v returned nil, and Redis has never seen it", o)
		}
		b.barriers[o.key] = append(b.barriers[o.key], o)
	}
}

// gaveValue checks a value against the changes that had returned before its
// caller came.
func (b *book) gaveValue(w *world, o *op, key, given string) {
	from, what := 0, ""
	rest, ok := strings.CutPrefix(given, key+" ")
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
		w.violate("value", "%v of %s was given %q", o, key, given)
		return
	}
	renewed := from
	if r := w.renewal(given, ""); r != nil {
		renewed = r.start
	}
	b.since(w, o, append(tagsOf(key), key), from, renewed, strconv.Quote(given)+", "+what)
	if o.kind == reload {
		b.gaveReload(w, o, given, f)
	}
	if o.source == guard.FromNear {
		w.seen("near value")
		b.gaveNear(w, o, given)
	}
	s, stored := b.stored[given]
	if o.source == guard.FromReserve || o.mayBeReserved() && !stored {
		b.gaveReserve(w, o, given, f, s.at)
		return
	}
	if !stored && o.start > from && !b.wasPreviewed(o, f) {
		w.violate("sharing", "%v, which came at step %d, was given %q, which was never stored, and %s at step %d", o, o.start, given, what, from)
	}
	if f != nil && f.private && f.op != o {
		w.violate("private", "%v was given the private value of %v", o, f.op)
	}
	y := w.plan.policy
	oldest := y.TTL + max(y.Stale, y.StaleIfError) + ms
	if r := w.renewal(given, ""); r != nil && r.began.After(s.at) {
		s.at = r.began
	}
	if stored && o.began.Sub(s.at) > oldest {
		w.violate("age", "%v was given %q, stored %v before it came, and values last %v", o, given, o.began.Sub(s.at), oldest)
	}
}

// wasPreviewed reports whether the op may have a fetch's value before the fetch's end.
func (b *book) wasPreviewed(o *op, f *fetch) bool {
	return o.previewed && f != nil && f.previewed && f.op.p == o.p
}

// mayBeReserved reports whether a value that the op was given may be of the reserve. GetMany
// does not tell.
func (o *op) mayBeReserved() bool {
	y := o.p.w.plan.policy
	on := y.Reserve.MaxBytes != guard.Off && !y.FailClosed
	return o.source == guard.FromReserve || o.kind == getMany && on
}

// gaveReserve checks a value of the reserve: it is as old as its terms allow, counted from
// when it was stored or fetched, and it was not invalidated by this process, whether Redis has
// acknowledged that or not.
func (b *book) gaveReserve(w *world, o *op, given string, f *fetch, at time.Time) {
	w.seen("reserve value")
	y := w.plan.policy
	if y.Reserve.MaxBytes == guard.Off || y.FailClosed {
		w.violate("reserve", "%v was given %q from a reserve that is off", o, given)
	}
	oldest := y.TTL + max(y.Stale, y.StaleIfError) + ms
	if at.IsZero() && f != nil { // it was fetched without a lease
		at, oldest = f.began, oldest+y.FetchTimeout
	}
	if r := w.renewal(given, ""); r != nil && r.began.After(at) {
		at, oldest = r.began, oldest+y.FetchTimeout
	}
	if !at.IsZero() && o.began.Sub(at) > oldest {
		w.violate("age", "%v was given %q from the reserve, %v old, and values last %v", o, given, o.began.Sub(at), oldest)
	}
	if f == nil {
		return
	}
	for _, c := range w.ops {
		changes := c.kind == del || c.kind == set
		if changes && c.p == o.p && c.key == o.key && c.end > 0 && c.end < o.start && f.start < c.start {
			w.violate("reserve", "%v, which started at step %d after %v had returned at step %d, was given %q from the reserve, whose fetch started at step %d",
				o, o.start, c, c.end, given, f.start)
		}
	}
}

// since checks the result of a caller, which is from the given step, against
// the changes of a key, or tags, that had returned before it came. A later step at
// which it was found to be good still counts against an Expire only: a value that
// was deleted, or set anew, is not to come back.
func (b *book) since(w *world, o *op, names []string, from, renewed int, what string) {
	var barriers []*op
	for _, name := range names {
		barriers = append(barriers, b.barriers[name]...)
	}
	for _, c := range barriers {
		// Expire is a barrier only where nothing stale may be served. Peek serves it,
		// the near cache does not.
		staleAllowed := o.kind == peek || w.plan.policy.Stale+w.plan.policy.StaleIfError > 0
		if (c.kind == expire || c.kind == expireTag) && staleAllowed && o.source != guard.FromNear {
			continue
		}
		step := from
		if c.kind == expire || c.kind == expireTag {
			step = renewed
		}
		if o.mayBeReserved() && c.p != o.p {
			continue // a process that Redis does not answer does not hear of it: see gaveReserve
		}
		if o.mayBeNear() {
			b.sinceNear(w, o, c, names, step, what)
			continue
		}
		if c.end < o.start && step < c.carriedOut {
			w.violate("P3", "%v, which started at step %d after %v (%v) had returned at step %d, was given %s at step %d, before that %v was carried out at step %d",
				o, o.start, c, c.kind, c.end, what, step, c.kind, c.carriedOut)
		}
	}
}

// nameless are the errors that don't name a fetch: the guard's own.
var nameless = []string{
	guard.ErrUnavailable.Error(), guard.ErrWaitTimeout.Error(), guard.ErrFetchTimeout.Error(),
	guard.ErrNotFound.Error(), guard.ErrGoexit.Error(), `the budget "` + budgetName + `" is exhausted`,
}

// gaveError checks that an error has a reason.
func (b *book) gaveError(w *world, o *op, key string, err error) {
	switch {
	case !o.deadline.IsZero() && !o.took.Before(o.deadline):
		return // its own
	case errors.Is(err, guard.ErrQuarantined):
		b.quarantined(w, o, key)
		return
	case errors.Is(err, guard.ErrClosed):
		if !o.p.leaving {
			w.violate("error", "%v was told that its guard is closed, which it is not", o)
		}
		return
	case errors.Is(err, guard.ErrMiss) && o.kind == peek:
		return
	}
	if w.plan.calm && !w.queued(o.p, key) && (errors.Is(err, guard.ErrUnavailable) || errors.Is(err, guard.ErrWaitTimeout) || errors.Is(err, guard.ErrFetchTimeout)) {
		w.violate("calm", "%v was told %v though nothing was wrong", o, err)
	}
	_, name, ok := strings.Cut(plain(err.Error()), key+" fetch ")
	if !ok {
		if !slices.ContainsFunc(nameless, func(text string) bool { return strings.Contains(err.Error(), text) }) {
			w.violate("error", "%v of %s was given an error that nobody made: %v", o, key, err)
		}
		return
	}
	name, _, _ = strings.Cut(name, " ")
	f := w.fetchNamed(name)
	if f == nil {
		w.violate("error", "%v was given the error of another key: %v", o, err)
		return
	}
	// A failure is for the callers that waited for it. Later callers get it only
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
func (b *book) quarantined(w *world, o *op, key string) {
	could := map[*process]bool{}
	for _, g := range b.granted {
		if g.key != entryName(key) {
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

// closed checks the remaining keys of the server when all processes are gone.
func (b *book) closed(w *world) {
	if w.memory != nil {
		b.closedInMemory(w)
		return
	}
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
			left(key, "the lease", v[:store.TokenSize])
		}
		tries, _ := w.server.SMembers(key + ":tries")
		for _, t := range tries {
			left(key, "the attempt", t)
		}
	}
}
