package sim

import (
	"errors"
	"slices"
	"time"
)

// heal ends all trouble: from now on everything that is sent arrives.
func (w *world) heal() {
	w.clock.Add(1)
	w.say("everything heals")
	w.healed = true
	for _, th := range w.thaws {
		th.do()
	}
	w.thaws = nil
	clear(w.held)
	w.healedAt = time.Now()
	w.quiet()
}

// patience bounds the steps that must happen once everything is well.
const patience = 2 * time.Minute

// until runs the scheduler until the condition holds, or for too long.
func (w *world) until(met func() bool) bool {
	for end := time.Now().Add(patience); !met(); {
		if time.Now().After(end) {
			return false
		}
		w.pass(w.upTo(50 * time.Microsecond))
		w.next()
	}
	return true
}

// settle waits for all callers, and until the guards are at rest.
func (w *world) settle() {
	if !w.until(func() bool { return w.active() == 0 }) {
		for _, o := range w.ops {
			if !o.forgotten && !w.done(o) {
				w.violate("P4 returns", "%v (%v of %s in p%d) has not returned after %v without trouble", o, o.kind, o.key, o.p.id, patience)
			}
		}
	}
	w.breakersClose()
	atRest := func(p *process) bool {
		t := p.tokens()
		return p.flying() == 0 && t[0]+t[1]+t[2]+t[3] == 0
	}
	if !w.until(func() bool {
		for _, p := range w.processes {
			if p.up() && !atRest(p) {
				return false
			}
		}
		return true
	}) {
		for _, p := range w.processes {
			if p.up() && !atRest(p) {
				w.violate("leak", "p%d at rest has %d flights, and tokens %v by state", p.id, p.flying(), p.tokens())
			}
		}
	}
}

// shutDown closes everything in order and checks that nothing is left.
func (w *world) shutDown() {
	for _, p := range w.processes {
		if p.up() {
			w.clock.Add(1)
			w.say("p%d leaves in order", p.id)
			p.close()
			w.quiet()
		}
	}
	if !w.until(func() bool {
		return !slices.ContainsFunc(w.processes, func(p *process) bool { return !p.isClosed() })
	}) {
		w.violate("leak", "a process can't be closed")
	}
	w.mu.Lock()
	for _, f := range w.running {
		f.ready = f.began
	}
	w.mu.Unlock()
	w.until(func() bool { return len(w.eligible()) == 0 })
	w.book.closed(w)
	for _, o := range w.ops {
		o.cancel()
	}
	for _, p := range w.processes {
		p.die()
		for _, n := range p.nets {
			_ = n.client.Close()
		}
	}
	w.wg.Wait()
	time.Sleep(time.Minute) // the calls of the clients end
	err := error(nil)
	if w.memory != nil {
		err = w.memory.Close()
	} else {
		err = errors.Join(w.admin.Close(), w.server.Stop())
	}
	if err != nil {
		w.violate("leak", "%v", err)
	}
}
