package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

func errorShared(r *run) {
	p := r.page(func(w *writer, n int) {
		r.sleep(w, 1)
		w.WriteHeader(http.StatusInternalServerError)
		w.text("failure %d", n)
	})
	all := r.herd(r.clients, p)
	for _, a := range all {
		if a.err != nil || a.status < 500 {
			r.fail("a client got %d, error %v", a.status, a.err)
		}
	}
	r.soon(all, 3)
	r.note("%d arrived", p.count())
}

func errorNotStored(r *run) {
	p := r.page(func(w *writer, n int) {
		r.sleep(w, 0.2)
		if n == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		} else {
			w.say("Cache-Control: max-age=60")
		}
		w.text("run %d", n)
	})
	r.ask(p)
	r.is(r.ask(p), 200, "run 2")
}

func redirects(r *run) {
	for _, c := range []struct {
		status  int
		control string
	}{{302, ""}, {301, "max-age=60"}} {
		p := r.page(func(w *writer, n int) {
			r.sleep(w, 1)
			if c.control != "" {
				w.say("Cache-Control: " + c.control)
			}
			w.say("Location: /elsewhere").WriteHeader(c.status)
			w.text("moved")
		})
		all := r.herd(r.clients, p)
		for _, a := range all {
			if r.is(a, c.status, "moved"); !strings.HasSuffix(a.header.Get("Location"), "/elsewhere") {
				r.fail("a client got the Location %q", a.header.Get("Location"))
			}
		}
		if r.soon(all, 3); c.control != "" {
			r.arrivals(p, 1)
		}
	}
}

func crashHeader(r *run) {
	p := r.page(func(w *writer, n int) {
		r.sleep(w, 1)
		if n == 1 {
			w.crash()
		}
		w.say("Cache-Control: max-age=60").text("whole")
	})
	all := r.herd(r.clients, p)
	broken := r.partless(all, "whole")
	r.soon(all, 4)
	r.note("%d of %d clients got an error", broken, len(all))
	r.is(r.ask(p), 200, "whole")
}

func crashBody(declared bool) func(*run) {
	return func(r *run) {
		whole := strings.Repeat("half of it", 1000)
		p := r.page(func(w *writer, n int) {
			w.say("Cache-Control: max-age=60")
			if declared {
				w.say(fmt.Sprint("Content-Length: ", len(whole)))
			}
			w.text("%s", whole[:len(whole)/2])
			r.sleep(w, 1)
			if n == 1 {
				w.crash()
			}
			w.text("%s", whole[len(whole)/2:])
		})
		all := r.herd(r.clients, p)
		broken := r.partless(all, whole)
		r.soon(all, 4)
		r.note("%d of %d clients got an error", broken, len(all))
		for range 3 { // the cache may still tell the failure to the clients that wait for it
			if a := r.ask(p); a.status == 200 || a.err != nil {
				r.is(a, 200, whole)
				return
			}
			time.Sleep(r.times(0.5))
		}
		r.fail("the page could not be had afterwards")
	}
}

func leaderLeaves(r *run) {
	p := r.slow()
	leader, err := r.open(p)
	if err != nil {
		panic(err)
	}
	r.arrives(p, 1)
	time.AfterFunc(r.times(0.3), func() { leader.Close() })
	all := r.herd(r.clients, p)
	r.same(all)
	r.soon(all, 3)
	r.arrivals(p, 2)
}

// same fails the case if an answer is not 200, or two differ.
func (r *run) same(all []answer) {
	for _, a := range all {
		r.is(a, 200, string(all[0].body))
	}
}

func leaderSlow(size int, declared bool) func(*run) {
	return func(r *run) {
		body := strings.Repeat("0123456789abcdef", size/16)
		p := r.page(func(w *writer, n int) {
			r.sleep(w, 1)
			if w.say("Cache-Control: max-age=60"); declared {
				w.say(fmt.Sprint("Content-Length: ", len(body)))
			}
			_, _ = io.WriteString(w, body)
		})
		leader, err := r.open(p)
		if err != nil {
			panic(err)
		}
		defer leader.Close()
		r.arrives(p, 1)
		all := r.herd(min(r.clients, 4), p) // the bytes take their time, too
		r.are(all, body)
		r.soon(all, 3+float64(size>>20)*0.5)
		r.arrivals(p, 2)
	}
}

func leaderInformed(r *run) {
	p := r.page(func(w *writer, n int) {
		w.say("Link: </style.css>; rel=preload; as=style; x=" + strings.Repeat("x", 4000))
		for range 1000 { // more than the buffers of the leader's connection hold
			w.WriteHeader(http.StatusEarlyHints)
		}
		w.Header().Del("Link")
		r.sleep(w, 1)
		w.say("Cache-Control: max-age=60").text("run")
	})
	leader, err := r.open(p)
	if err != nil {
		panic(err)
	}
	defer leader.Close()
	r.arrives(p, 1)
	all := r.herd(r.clients, p)
	r.are(all, "run")
	r.soon(all, 3)
	r.arrivals(p, 2)
}

func leaderSays(header string) func(*run) {
	return func(r *run) {
		p := r.slow()
		all := r.led(p, []option{with("%s", header)})
		if a := all[0]; a.status == 206 {
			r.is(a, 206, "run ")
		} else {
			r.same(all[:1])
		}
		r.same(all[1:])
		r.soon(all, 3)
		r.arrivals(p, 2)
	}
}

func bodyAboveBound(r *run) {
	body := strings.Repeat("x", r.bound+1)
	p := r.page(func(w *writer, n int) {
		r.sleep(w, 1)
		w.say("Cache-Control: max-age=60")
		for rest := body; rest != ""; {
			part := rest[:min(len(rest), 64<<10)]
			if _, err := io.WriteString(w, part); err != nil {
				return
			}
			rest = rest[len(part):]
		}
	})
	all := r.herd(r.clients, p)
	r.are(all, body)
	r.soon(all, 6)
	r.note("%d arrived", p.count())
}

func trailers(r *run) {
	p := r.page(func(w *writer, n int) {
		r.sleep(w, 1)
		w.say("Cache-Control: max-age=60", "Trailer: X-Sum").text("body")
		w.say("X-Sum: 42")
	})
	for _, a := range r.herd(r.clients, p, with("TE: trailers")) {
		if r.is(a, 200, "body"); a.trailer.Get("X-Sum") != "42" {
			r.fail("a client got the trailer %v", a.trailer)
		}
	}
	r.arrivals(p, 1)
}

func endless(r *run) {
	p := r.page(func(w *writer, n int) {
		w.say("Cache-Control: max-age=60")
		for w.req.Context().Err() == nil {
			w.text("tick\n")
			r.sleep(w, 0.2)
		}
	})
	one := func(int) answer {
		return r.askUntil(p, func(n int) bool { return n > 0 }, within(6*time.Second))
	}
	leader, err := r.open(p, within(8*time.Second))
	if err != nil {
		panic(err)
	}
	defer leader.Close()
	go func() { _, _ = io.Copy(io.Discard, leader) }()
	r.arrives(p, 1)
	silent := 0
	var worst time.Duration
	for _, a := range r.together(r.clients, one) {
		if worst = max(worst, a.end.Sub(a.start)); len(a.body) == 0 {
			silent++
		}
	}
	r.note("first byte after %.2fs", worst.Seconds())
	if r.note("%d arrived", p.count()); silent > 0 {
		r.fail("%d of %d waiters got no byte within 6s", silent, r.clients)
	}
}

func maxWait(r *run) {
	p := r.page(func(w *writer, n int) {
		w.say("Cache-Control: max-age=60")
		select {
		case <-w.req.Context().Done():
		case <-time.After(caseTimeout):
		}
		w.crash()
	})
	var worst time.Duration
	for _, a := range r.herd(r.clients, p, within(70*time.Second)) {
		if worst = max(worst, a.end.Sub(a.start)); a.err != nil || a.status < 500 {
			r.fail("a client got %d, error %v", a.status, a.err)
		}
	}
	r.note("%.1fs", worst.Seconds())
}
