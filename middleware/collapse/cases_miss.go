package main

import (
	"fmt"
	"strings"
	"time"
)

func missOne(r *run) {
	p := r.slow()
	all := r.herd(r.clients, p)
	r.are(append(all, r.ask(p)), "run 1")
	r.soon(all, 3)
	r.arrivals(p, 1)
}

// parts is a page with a body that takes so many fetch times, one part for each tenth of one.
func (r *run) parts(fetches int) (p *page, whole string) {
	for i := range 10 * fetches {
		whole += fmt.Sprintf("part %d of run 1,%s\n", i, strings.Repeat(".", 2000))
	}
	return r.page(func(w *writer, n int) {
		w.say("Cache-Control: max-age=60")
		for i := range 10 * fetches {
			w.text("part %d of run %d,%s\n", i, n, strings.Repeat(".", 2000))
			r.sleep(w, 0.1)
		}
	}), whole
}

func missJoinsLate(r *run) {
	p, whole := r.parts(1)
	first := make(chan answer, 1)
	go func() { first <- r.ask(p) }()
	r.arrives(p, 1)
	time.Sleep(r.times(0.5))
	r.are(append(r.herd(r.clients, p), <-first), whole)
	r.arrivals(p, 1)
}

func waitersStream(r *run) {
	p, whole := r.parts(2)
	all := r.herd(r.clients, p)
	r.are(all, whole)
	r.arrivals(p, 1)
	var worst time.Duration
	for _, a := range all {
		worst = max(worst, a.first.Sub(a.start))
	}
	if r.note("first byte after %.2fs", worst.Seconds()); worst > r.times(1) {
		r.fail("a waiter got its first byte after %.2fs, of a body of %.2fs", worst.Seconds(), r.times(2).Seconds())
	}
}

func lateStream(r *run) {
	p, whole := r.parts(4)
	first := make(chan answer, 1)
	go func() { first <- r.ask(p) }()
	r.arrives(p, 1)
	time.Sleep(r.times(1))
	a := r.ask(p)
	r.are([]answer{a, <-first}, whole)
	r.arrivals(p, 1)
	d := a.first.Sub(a.start)
	if r.note("first byte after %.2fs", d.Seconds()); d > r.times(1) {
		r.fail("the late client got its first byte after %.2fs, with %.2fs of the body left", d.Seconds(), r.times(3).Seconds())
	}
}

// languages is a page that varies on Accept-Language.
func (r *run) languages(lines ...string) *page {
	return r.page(func(w *writer, n int) {
		r.sleep(w, 1)
		w.say("Cache-Control: max-age=60", "Vary: Accept-Language").say(lines...).text("language %s", w.asks("Accept-Language"))
	})
}

func varySplit(r *run) {
	p := r.languages()
	languages := []string{"de", "fr", "ja"}
	all := r.together(r.clients, func(i int) answer { return r.ask(p, with("Accept-Language: %s", languages[i%3])) })
	for i, a := range all {
		r.is(a, 200, "language "+languages[i%3])
	}
	r.arrivals(p, 3)
}

func varyParallel(r *run) {
	p := r.languages()
	all := r.together(8, func(i int) answer { return r.ask(p, with("Accept-Language: x-%d", i)) })
	for i, a := range all {
		r.is(a, 200, fmt.Sprintf("language x-%d", i))
	}
	r.soon(all, 3)
}

func private(control string) func(*run) {
	return func(r *run) {
		p := r.slow(control)
		all := r.herd(r.clients, p)
		r.own(all)
		r.soon(all, 3)
	}
}

func setCookie(r *run) {
	p := r.page(func(w *writer, n int) {
		r.sleep(w, 1)
		w.say("Cache-Control: max-age=60", fmt.Sprintf("Set-Cookie: session=%d", n)).text("run %d", n)
	})
	all := r.herd(r.clients, p)
	seen := map[string]bool{}
	for _, a := range append(all, r.ask(p)) {
		c := a.header.Get("Set-Cookie")
		if a.err != nil || a.status != 200 {
			r.fail("a client got %d, error %v", a.status, a.err)
		}
		if c != "" && seen[c] {
			r.fail("two clients got the same cookie")
		}
		seen[c] = true
	}
	r.soon(all, 3)
}

func users(header string) func(*run) {
	name, _, _ := strings.Cut(header, ":")
	return func(r *run) {
		p := r.page(func(w *writer, _ int) {
			r.sleep(w, 1)
			w.say("Cache-Control: max-age=60").text("for %s", w.asks(name))
		})
		all := r.together(r.clients, func(i int) answer { return r.ask(p, with(header, i)) })
		for i, a := range all {
			_, value, _ := strings.Cut(fmt.Sprintf(header, i), ": ")
			r.is(a, 200, "for "+value)
		}
		r.soon(all, 3)
	}
}

func statusCollapsed(r *run) {
	p := r.slow()
	told := 0
	for _, a := range r.led(p, nil) {
		if strings.Contains(strings.Join(a.header["Cache-Status"], ","), "collapsed") {
			told++
		}
	}
	if r.arrivals(p, 1); told < r.clients {
		r.fail("%d of %d waiters were told so", told, r.clients)
	}
}

func ageCollapsed(r *run) {
	p := r.slow("Age: 10")
	for _, a := range r.led(p, nil) {
		age := a.header.Get("Age")
		if r.is(a, 200, "run 1"); age != "10" && age != "11" {
			r.fail("a client got Age %q for a response that came with Age 10", age)
		}
	}
	r.arrivals(p, 1)
}
