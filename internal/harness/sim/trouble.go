package sim

import (
	"context"
	"time"
)

// makeTrouble lets one of the seed's troubles come over some process.
func (w *world) makeTrouble() {
	kind := w.plan.troubles[w.rng.IntN(len(w.plan.troubles))]
	var up []*process
	for _, p := range w.processes {
		if p.up() && !p.frozen {
			up = append(up, p)
		}
	}
	if len(up) == 0 {
		w.revive()
		return
	}
	p := up[w.rng.IntN(len(up))]
	lasts := w.upTo(pick(w.rng, 100*ms, w.plan.policy.Lease, 2*w.plan.policy.Lease+300*ms, 2*time.Second))
	w.clock.Add(1)
	w.fault(kind.String())
	switch kind {
	case crash:
		w.say("p%d crashes", p.id)
		p.crash()
	case leaveInOrder:
		w.say("p%d leaves in order", p.id)
		p.close()
	case freeze:
		w.say("p%d freezes for %v", p.id, lasts)
		p.frozen = true
		w.later(lasts, func() {
			if p.frozen {
				w.say("p%d goes on", p.id)
				p.frozen = false
			}
		})
	case cutSubscription:
		w.say("p%d loses its subscribed connection", p.id)
		for _, n := range p.nets {
			n.cut()
		}
	case evictLease:
		key := w.book.keys[w.rng.IntN(len(w.book.keys))]
		w.say("the lease of %s is evicted", key)
		w.server.Del(key + ":lease")
		w.book.evicted[key] = w.step()
	case flushScripts:
		w.say("the scripts are flushed")
		if err := w.admin.ScriptFlush(context.Background()).Err(); err != nil {
			w.t.Error(err)
		}
		w.loadExtend()
	case badWeather:
		some := []*process{p}
		if w.rng.IntN(3) == 0 {
			some = up // Redis itself is away
		}
		weather := pick(w.rng, refused, swallow)
		for _, p := range some {
			w.say("p%d: Redis is away, %v, for %v", p.id, weather, lasts)
			for _, n := range p.nets {
				n.turn(weather)
			}
		}
		w.later(lasts, func() {
			for _, p := range some {
				w.say("p%d: Redis is back", p.id)
				for _, n := range p.nets {
					n.turn(fair)
				}
			}
		})
	}
	w.quiet()
	if !p.up() && w.rng.IntN(2) == 0 {
		w.revive()
	}
}

// evictRecords evicts some of the records of the tags that a call has changed, so that
// fetches under way have to do without them.
func (w *world) evictRecords(c *call) {
	if w.healed || w.plan.calm {
		return
	}
	for _, m := range c.commands {
		if m.is("tag") && w.rng.IntN(2) == 0 {
			w.fault("evict record")
			w.say("the record %s is evicted", m.key)
			w.server.Del(m.key)
		}
	}
}

// loadExtend lets Redis know the script that renews leases, where there are
// several: the store sends it again for one after another, and in which order is
// that of a map.
func (w *world) loadExtend() {
	if w.plan.keys == 1 || w.memory != nil {
		return
	}
	for source, name := range w.scripts.names {
		if name == "extend" && len(source) > 40 {
			if err := w.admin.ScriptLoad(context.Background(), source).Err(); err != nil {
				w.t.Error(err)
			}
		}
	}
}

// revive starts another process, unless there have been many.
func (w *world) revive() {
	if len(w.processes) >= 9 {
		for len(w.ops) < w.plan.ops { // nothing can be called any more
			w.plan.ops--
		}
		return
	}
	w.clock.Add(1)
	p := w.newProcess()
	w.say("p%d starts", p.id)
	w.quiet()
}

func (w *world) later(d time.Duration, do func()) {
	w.thaws = append(w.thaws, thaw{time.Now().Add(d), do})
}

// thaw ends the troubles that are due.
func (w *world) thaw() {
	now := time.Now()
	var left []thaw
	for _, th := range w.thaws {
		if now.Before(th.at) {
			left = append(left, th)
			continue
		}
		w.clock.Add(1)
		th.do()
		w.quiet()
	}
	w.thaws = left
}
