package sim

import (
	"slices"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// Sights are the rare things that seeds must have shown for their checks to say
// anything.
var Sights = []string{
	"near value", "preview", "reserve value", "stale near value, allowed", "reload", "soft timeout", "open breaker",
	"call while the breaker was open", "paid fetch", "exhausted budget", "exhausted grant", "turn",
}

// A feed is the knowledge that a process can have of invalidations. Its near cache may serve a
// value that was changed only until the process has heard of the change.
type feed struct {
	up      bool
	changes []int // steps at which that changed: near values from before are not used after
	reached time.Time
	heard   map[string][]hearing // by key or tag
}

// A hearing is one invalidation: when Redis sent it, and when it arrived.
type hearing struct{ sent, arrived int }

// hear takes in a message, which has one byte of kind in front.
func (f *feed) hear(message string, sent, arrived int) {
	if f.heard == nil {
		f.heard = map[string][]hearing{}
	}
	name := tagOf(message)
	f.heard[name] = append(f.heard[name], hearing{sent, arrived})
}

// tagOf is the tag, or the key, that an invalidation is about, as users name it.
func tagOf(message string) string {
	if len(message) < len(guardName)+2 {
		return ""
	}
	return message[len(guardName)+2:] // the kind, and "g:"
}

// noticeFeeds notes which processes may count on hearing of invalidations.
func (w *world) noticeFeeds() {
	for _, p := range w.processes {
		if p.n == nil { // its store tells of a change while it carries the change out
			p.feed.up, p.feed.reached = true, time.Now()
			continue
		}
		l := p.n.live()
		if up := l != nil && l.following(); up != p.feed.up {
			p.feed.up = up
			p.feed.changes = append(p.feed.changes, w.step())
		}
		if p.n.reachable() {
			p.feed.reached = time.Now()
		}
	}
}

// mayBeNear reports whether a call may have been served from the near cache.
// GetMany does not say.
func (o *op) mayBeNear() bool {
	return o.source == guard.FromNear || o.kind == getMany && o.w.plan.policy.Near.MaxEntries > 0
}

// heardOf is the step from which the process of a call must not serve a value that a
// change has made untrue: its own change returned, it heard of it, or its feed went down
// or came up. It is 0 while there was nothing of that.
func (o *op) heardOf(c *op, name string) int {
	told := c.told[name]
	switch {
	case c.p == o.p:
		return c.end
	case o.p.n == nil:
		return told
	}
	first := 0
	note := func(step int) {
		if step >= told && (first == 0 || step < first) {
			first = step
		}
	}
	for _, h := range o.p.feed.heard[name] {
		if h.sent >= told {
			note(h.arrived)
		}
	}
	for _, step := range o.p.feed.changes {
		note(step)
	}
	return first
}

// linkTimeout is how long a process may go on serving near values when its link to
// Redis swallows everything.
const linkTimeout = 2 * time.Second

// sinceNear checks a value that may be near, and is from the given step, against a
// change of any of the names that had returned before its caller came.
func (b *book) sinceNear(w *world, o, c *op, names []string, from int, what string) {
	if c.end >= o.start || from >= c.carriedOut {
		return
	}
	for name := range c.told {
		if !slices.Contains(names, name) {
			continue
		}
		if heard := o.heardOf(c, name); heard != 0 && heard < o.start {
			w.violate("near", "%v, which started at step %d after its process had heard of %v (%v) at step %d, was given %s at step %d, before that %v was carried out at step %d",
				o, o.start, c, c.kind, heard, what, from, c.kind, c.carriedOut)
			return
		}
	}
	// The last values were on their way for as long as the link may be dead.
	if late := o.began.Sub(c.took); late > w.plan.policy.Near.TTL+linkTimeout+time.Second {
		w.violate("near", "%v was given %s %v after %v (%v) had returned, and near values last %v", o, what, late, c, c.kind, w.plan.policy.Near.TTL)
	}
	w.seen("stale near value, allowed")
}

// gaveNear checks that a near value was served only while its process could hear of
// changes, and that it is no older than the values that the process has reloaded.
func (b *book) gaveNear(w *world, o *op, given string) {
	f := &o.p.feed
	if last := len(f.changes) - 1; !f.up && last >= 0 && f.changes[last] < o.start {
		w.violate("near", "%v was served from the near cache, whose feed was down since step %d", o, f.changes[last])
	}
	if silent := o.began.Sub(f.reached); silent > linkTimeout {
		w.violate("near", "%v was served from the near cache, and the link was dead for %v", o, silent)
	}
	for _, r := range b.reloads {
		if r.op.p == o.p && r.op.key == o.key && r.op.end < o.start && b.stored[given].step < r.stored {
			w.violate("near", "%v was served %q from the near cache, stored at step %d, after %v had reloaded what was stored at step %d",
				o, given, b.stored[given].step, r.op, r.stored)
		}
	}
}

// A reloading is a Reload that brought the entry of a step.
type reloading struct {
	op     *op
	stored int
}

// gaveReload checks that a Reload brought the outcome of a fetch, or of a Set, that
// was not over when it was called.
func (b *book) gaveReload(w *world, o *op, given string, f *fetch) {
	w.seen("reload")
	s, stored := b.stored[given]
	r := w.renewal(given, "")
	switch {
	case r != nil && (r.ended == 0 || r.ended >= o.start): // found to be good still meanwhile
	case stored && s.step < o.start:
		w.violate("reload", "%v, which came at step %d, was given %q, which was stored at step %d", o, o.start, given, s.step)
	case !stored && f != nil && f.ended != 0 && f.ended < o.start:
		w.violate("reload", "%v, which came at step %d, was given %q, whose fetch ended at step %d", o, o.start, given, f.ended)
	}
	if stored {
		b.reloads = append(b.reloads, reloading{o, s.step})
	}
}

// tooPatient checks that a call was given a stale value when its fetch took longer
// than SoftTimeout. It looks only where there was one all the time, and nothing
// that holds up commands.
func (b *book) tooPatient(w *world, o *op) {
	soft := w.plan.policy.SoftTimeout
	if soft == 0 || !w.plan.calm || w.plan.tagged {
		return
	}
	const commands = 500 * ms // the time that the scheduler gives a few commands
	took := o.took.Sub(o.began)
	if o.err == nil && o.source == guard.Stale && took >= soft {
		w.seen("soft timeout")
	}
	if o.before.usable() < took+commands || took <= soft+commands {
		return
	}
	for _, c := range w.ops {
		change := c.kind == set || c.kind == del || c.kind == expire
		if change && c.key == o.key && (c.end == 0 || c.end >= o.start) {
			return
		}
	}
	w.violate("soft", "%v waited for %v, and could have had a stale value after %v", o, took, soft)
}
