package sim

import (
	"slices"
	"strconv"
	"strings"
	"testing/synctest"
	"time"
)

// turn is one iteration of the scheduler.
func (w *world) turn() {
	w.pass(w.upTo(200 * time.Microsecond))
	w.thaw()
	switch {
	case w.chance(w.plan.trouble):
		w.makeTrouble()
	case w.chance(w.plan.impatience * 10):
		w.pass(w.upTo(pick(w.rng, 3*ms, 30*ms, w.spell())))
	case len(w.ops) < w.plan.ops && w.active() < 12 && w.rng.IntN(4) == 0:
		w.newOp()
	default:
		w.next()
	}
}

// spell is the longest time that may pass while something could go on.
func (w *world) spell() time.Duration {
	if w.plan.calm || w.healed {
		return 30 * ms
	}
	return 300 * ms
}

func (w *world) active() int {
	n := 0
	for _, o := range w.ops {
		if !o.forgotten && !w.done(o) {
			n++
		}
	}
	return n
}

func (w *world) newOp() {
	var up []*process
	for _, p := range w.processes {
		if p.up() {
			up = append(up, p)
		}
	}
	if len(up) == 0 {
		w.revive()
		return
	}
	k := get
	if n := w.rng.IntN(100); n < w.plan.changing {
		k = pick(w.rng, set, del, del, expire, reset)
	} else if n > 95 {
		k = peek
	}
	keys := []string{"k" + strconv.Itoa(w.rng.IntN(w.plan.keys))}
	if w.plan.tagged && k != get && k != peek && w.rng.IntN(2) == 0 {
		k, keys[0] = pick(w.rng, delTag, delTag, expireTag), pick(w.rng, tagsOf(keys[0])...)
	}
	if w.plan.refresh && k == get && w.rng.IntN(4) == 0 {
		k = reload
	}
	if w.plan.many && k == get && w.rng.IntN(2) == 0 {
		k, keys = getMany, w.someKeys()
	}
	w.clock.Add(1)
	w.startOp(up[w.rng.IntN(len(up))], k, keys...)
	w.quiet()
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	w.clock.Add(1)
	time.Sleep(d)
	w.quiet()
}

// quiet waits until nothing can go on by itself, and takes note of the new events.
func (w *world) quiet() {
	synctest.Wait()
	for w.beat() {
		synctest.Wait()
	}
	w.history.settle()
	w.noticeProcesses()
	w.noticeGivenUp()
	w.noticeFeeds()
	w.noticeFetches()
	w.noticeReturns()
}

// beat lets signs of life through.
func (w *world) beat() bool {
	some := false
	for _, n := range w.networks() {
		if l := n.live(); l != nil && n.reachable() {
			some = l.beat() || some
		}
	}
	return some
}

// networks lists those of all processes.
func (w *world) networks() []*network {
	var all []*network
	for _, p := range w.processes {
		all = append(all, p.nets...)
	}
	return all
}

// reachable reports whether bytes of the process arrive, and those for it.
func (n *network) reachable() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.owner.frozen && !n.owner.crashed && n.weather != swallow
}

// An event is something that the scheduler can let happen.
type event struct {
	id      any // stays the same while it is possible
	do      func()
	message bool // a wake-up
}

type phase struct {
	of any
	n  int
}

// eligible lists the events that can happen now, in an order that depends on the past
// events only.
func (w *world) eligible() []event {
	var all []event
	for _, n := range w.networks() {
		all = append(all, w.eligibleOf(n)...)
	}
	for _, p := range w.processes {
		if p.gate != nil && !p.frozen {
			all = append(all, p.gate.eligible()...)
		}
	}
	for _, f := range w.runs() {
		if f.first == nil && !f.op.p.frozen && !time.Now().Before(f.ready) {
			all = append(all, event{f, func() { w.endFetch(f) }, false})
		}
	}
	return slices.DeleteFunc(all, func(e event) bool {
		until, delayed := w.held[e.id]
		return delayed && time.Now().Before(until)
	})
}

// eligibleOf lists the possible events of a network.
func (w *world) eligibleOf(n *network) (all []event) {
	for _, c := range n.pending() {
		switch state := n.stateOf(c); {
		case state == ghost:
			all = append(all, event{phase{c, int(ghost)}, func() { w.late(c) }, false})
		case !n.reachable():
		case state == waiting:
			all = append(all, event{phase{c, int(waiting)}, func() { w.request(c) }, false})
		case state == executed:
			all = append(all, event{phase{c, int(executed)}, func() { w.answer(c) }, false})
		}
	}
	if l := n.live(); l != nil && n.reachable() {
		out, in, sent, received := l.heads()
		if out != nil {
			all = append(all, event{phase{l, sent << 1}, func() { w.subscribe(n.owner, l, *out) }, false})
		}
		if in != nil {
			all = append(all, event{phase{l, received<<1 | 1}, func() { w.message(n.owner, l, *in) }, in.what == "message"})
		}
	}
	return all
}

// runs lists the fetches that run, by name.
func (w *world) runs() []*fetch {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Clone(w.running)
	slices.SortFunc(all, func(a, b *fetch) int {
		if a.op.id != b.op.id {
			return a.op.id - b.op.id
		}
		return len(a.name)*1000 - len(b.name)*1000 + strings.Compare(a.name, b.name)
	})
	return all
}

// next lets one of the possible events happen. Where there is none, time passes
// until there is.
func (w *world) next() {
	for d := ms; ; d = min(2*d, 16*ms) {
		all := w.eligible()
		if len(all) == 0 {
			w.pass(w.upTo(d))
			w.thaw()
			if d == 16*ms {
				return
			}
			continue
		}
		e := all[w.rng.IntN(len(all))]
		chance := w.plan.delay
		if e.message {
			chance = w.plan.delayMessage
		}
		if _, delayed := w.held[e.id]; !delayed && !w.healed && w.chance(chance) {
			w.held[e.id] = time.Now().Add(w.upTo(pick(w.rng, 20*ms, 100*ms, 400*ms)))
			return
		}
		w.clock.Add(1)
		e.do()
		w.quiet()
		return
	}
}
