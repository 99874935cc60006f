package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// request carries a command out, or loses it.
func (w *world) request(c *call) {
	if !w.healed && w.chance(w.plan.loseRequest) {
		if some := w.tear(c); some > 0 {
			w.fault("request torn")
			w.say("p%d: only %d of %d commands arrive", c.n.proc, some, len(c.cmds))
			w.carryOut(c, func() { c.request <- torn(some) })
			return
		}
		w.fault("request lost")
		w.say("p%d: %s is lost on its way", c.n.proc, c.label)
		c.request <- errCut
		return
	}
	w.carryOut(c, func() { c.request <- nil })
	w.evictRecords(c)
}

// tear draws where a pipeline's connection ends: after so many of its commands.
// Some have the order of a map, and would be torn differently each time. Where no
// caller asks for several keys at once there is nothing to be torn.
func (w *world) tear(c *call) int {
	if first := c.commands[0]; !w.plan.many || len(c.cmds) == 1 || first.is("extend") || first.is("tie") {
		return 0
	}
	return w.rng.IntN(len(c.cmds))
}

// late carries out a command that its client has given up.
func (w *world) late(c *call) {
	c.n.mu.Lock()
	c.n.calls = without(c.n.calls, c)
	c.n.mu.Unlock()
	if !w.healed && w.rng.IntN(2) == 0 {
		return // it never arrives
	}
	w.fault("request late")
	cmds := c.cmds
	if !w.healed {
		cmds = cmds[:len(cmds)-w.tear(c)]
	}
	w.carryOut(c, func() {
		for _, cmd := range cmds {
			_ = w.admin.Process(context.Background(), cmd)
			c.looks = append(c.looks, w.book.look(w))
		}
	})
}

func (w *world) carryOut(c *call, do func()) {
	before := w.book.look(w)
	do()
	synctest.Wait()
	w.say("p%d: %s is carried out: %s", c.n.proc, c.label, w.replyOf(c))
	w.book.carriedOut(w, c, before)
}

// answer delivers an answer, or loses it.
func (w *world) answer(c *call) {
	if c.n.isTorn(c) {
		w.say("p%d: there is no answer of %s", c.n.proc, c.label)
		c.answer <- errCut
		return
	}
	if !w.healed && w.chance(w.plan.loseAnswer) {
		if some := w.tear(c); some > 0 {
			w.fault("answer torn")
			w.say("p%d: %d of the answers of %s arrive", c.n.proc, some, c.label)
			c.answer <- torn(some)
			return
		}
		w.fault("answer lost")
		w.say("p%d: the answer of %s is lost", c.n.proc, c.label)
		c.answer <- errCut
		return
	}
	w.say("p%d: the answer of %s arrives", c.n.proc, c.label)
	c.answer <- nil
}

func (w *world) replyOf(c *call) string {
	if c.commands[0].is("get") {
		var all []string
		c.n.mu.Lock()
		defer c.n.mu.Unlock()
		for _, cmd := range c.cmds {
			if get, ok := cmd.(*redis.StringCmd); ok && get.Err() == nil {
				e, _ := parse([]byte(get.Val()))
				all = append(all, fmt.Sprintf("%v %q by %s", e.Kind, e.Payload, w.tokenName(string(e.Version[:]))))
			}
		}
		slices.Sort(all)
		return fmt.Sprintf("%d found %s", len(all), strings.Join(all, ", "))
	}
	if len(c.cmds) > 1 {
		return w.repliesOf(c)
	}
	switch v := c.commands[0].reply().(type) {
	case nil:
		return "no reply"
	case []any:
		text := fmt.Sprint(v[0])
		switch text {
		case "held":
			text += " by " + w.tokenName(v[1].(string)) + fmt.Sprintf(", unwatched %v", v[3])
		case "granted":
			text += fmt.Sprintf(", taken over %v, tries %v", v[1], v[2])
		}
		return text
	default:
		return fmt.Sprint(v)
	}
}

// repliesOf sorts the replies of the scripts of a pipeline: the order may be that of
// a map.
func (w *world) repliesOf(c *call) string {
	var all []string
	for _, m := range c.commands {
		what := ""
		switch v := m.reply().(type) {
		case nil:
			continue
		case []any:
			what = fmt.Sprint(v[0])
		default:
			what = fmt.Sprint(v)
		}
		all = append(all, userKey(m.key)+" "+what)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (w *world) subscribe(p *process, l *wire, what parcel) {
	w.say("p%d: its %s is carried out", p.id, what.what)
	l.send()
}

func (w *world) message(p *process, l *wire, what parcel) {
	// A connection that lives loses nothing. A lost wake-up stands for one that was
	// published before the subscription, or that a full watch has dropped.
	lose := what.what == "message" && !what.about("message", invalidations) && !w.healed && w.chance(w.plan.loseMessage)
	text := what.what
	if what.about("message", invalidations) {
		text = fmt.Sprintf("invalidation %q", what.parts[2])
		p.feed.hear(what.parts[2], what.sent, w.step())
	}
	if what.what == "message" && len(what.parts) == 3 {
		if m, err := store.ParseMessage([]byte(what.parts[2])); err == nil {
			text = fmt.Sprintf("message %v on %s", m.Signal, what.parts[1])
		}
	}
	if lose {
		w.fault("message lost")
		w.say("p%d: %s is lost", p.id, text)
	} else {
		w.say("p%d: %s arrives", p.id, text)
	}
	l.receive(lose)
}

func (w *world) endFetch(f *fetch) {
	w.say("fetch %s may end, %v", f.name, f.ending)
	f.ready = f.began.Add(1000 * time.Hour)
	close(f.finish)
}
