package main

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// document is a page of 10,000 bytes with a validator, which serves ranges and conditions.
func (r *run) document(control string) (p *page, body string) {
	body = strings.Repeat("0123456789", 1000)
	return r.page(func(w *writer, n int) {
		r.sleep(w, 1)
		w.say("Cache-Control: "+control, `ETag: "v1"`, "Content-Type: text/plain")
		http.ServeContent(w, w.req, "", time.Time{}, bytes.NewReader([]byte(body)))
	}), body
}

func rangeAmong(r *run) {
	p, body := r.document("max-age=60")
	all := r.together(r.clients, func(i int) answer {
		if i%4 == 1 {
			return r.ask(p, with("Range: bytes=%d-%d", 10*i, 10*i+9))
		}
		return r.ask(p)
	})
	for i, a := range all {
		r.isRange(i%4 == 1, a, body, 10*i)
	}
	r.soon(all, 4)
	r.note("%d arrived", p.count())
}

// isRange fails the case if the answer is neither the whole nor, where that was asked for,
// the ten bytes from the offset.
func (r *run) isRange(asked bool, a answer, body string, from int) {
	if asked && a.status == http.StatusPartialContent {
		want := fmt.Sprintf("bytes %d-%d/%d", from, from+9, len(body))
		if r.is(a, 206, body[from:from+10]); a.header.Get("Content-Range") != want {
			r.fail("a client got the Content-Range %q, want %q", a.header.Get("Content-Range"), want)
		}
		return
	}
	r.is(a, 200, body)
}

func rangeHerd(r *run) {
	p, body := r.document("max-age=60")
	all := r.together(r.clients, func(i int) answer { return r.ask(p, with("Range: bytes=%d-%d", 10*i, 10*i+9)) })
	for i, a := range all {
		r.isRange(true, a, body, 10*i)
	}
	r.soon(all, 3)
	r.arrivals(p, 1)
}

func headHerd(r *run) {
	p, _ := r.document("max-age=60")
	all := r.herd(r.clients, p, method("HEAD"))
	r.are(all, "")
	r.soon(all, 3)
	r.arrivals(p, 1)
}

func headThenGet(r *run) {
	p, body := r.document("max-age=60")
	head := make(chan answer, 1)
	go func() { head <- r.ask(p, method("HEAD")) }()
	r.arrives(p, 1)
	r.are(r.herd(r.clients, p), body)
	r.is(<-head, 200, "")
	r.is(r.ask(p, method("HEAD")), 200, "")
	r.is(r.ask(p), 200, body)
	r.arrivals(p, 3)
}

func posts(r *run) {
	p := r.slow()
	all := r.herd(r.clients, p, method("POST"))
	r.own(all)
	r.soon(all, 3)
	if n := p.count(); n != r.clients {
		r.fail("%d requests arrived at the origin, want %d", n, r.clients)
	}
}

func conditional(r *run) {
	p, body := r.document("max-age=60")
	ask := func(i int) answer {
		if i%2 == 1 {
			return r.ask(p, with(`If-None-Match: "v1"`))
		}
		return r.ask(p)
	}
	for range 2 { // cold, and stored
		for i, a := range r.together(r.clients, ask) {
			if i%2 == 1 && a.status == http.StatusNotModified {
				r.is(a, 304, "")
				continue
			}
			r.is(a, 200, body)
		}
	}
	r.arrivals(p, 2)
}

// lifetime is the max-age of pages that are to expire, and grown the wait for that.
const (
	lifetime = "max-age=1"
	grown    = 2500 * time.Millisecond
)

func expired(validated bool) func(*run) {
	return func(r *run) {
		p := r.page(func(w *writer, n int) {
			r.sleep(w, 1)
			if validated {
				w.say(`ETag: "v1"`)
			}
			w.say("Cache-Control: " + lifetime)
			if n > 1 {
				w.say("Cache-Control: max-age=60")
			}
			if w.asks("If-None-Match") == `"v1"` && validated {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			w.text("page")
		})
		r.is(r.ask(p), 200, "page")
		time.Sleep(grown)
		p.forget()
		all := r.herd(r.clients, p)
		r.are(all, "page")
		r.soon(all, 3)
		r.arrivals(p, 1)
	}
}

func privateRevalidated(r *run) {
	p := r.page(func(w *writer, n int) {
		w.say(`ETag: "v1"`, "Cache-Control: "+lifetime)
		if n > 1 {
			w.say("Cache-Control: private, max-age=60")
		}
		if w.asks("If-None-Match") == `"v1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.text("page")
	})
	r.is(r.ask(p), 200, "page")
	time.Sleep(grown)
	for range 4 {
		r.is(r.ask(p), 200, "page")
	}
	if n := p.count(); n < 4 {
		r.fail("%d requests arrived at the origin, want 4 or 5: the page was shared after its 304 had said private", n)
	}
}

func staleWhileRevalidate(others int) func(*run) {
	return func(r *run) {
		p := r.page(func(w *writer, n int) {
			if n > 1 {
				r.sleep(w, 1)
			}
			w.say("Cache-Control: "+lifetime+", stale-while-revalidate=60").text("run %d", n)
		})
		for i := range 1 + others {
			r.is(r.ask(p, at(i)), 200, "run 1")
		}
		time.Sleep(grown)
		p.forget()
		all := r.together(r.clients, func(i int) answer { return r.ask(p, at(i%(1+others))) })
		r.are(all, "run 1")
		r.soon(all, 0.8)
		r.arrivals(p, 1)
	}
}

func zeroTTL(r *run) {
	for _, control := range []string{"max-age=0", "no-cache"} {
		p := r.slow("Cache-Control: " + control)
		all := r.herd(r.clients, p)
		for _, a := range all {
			if a.err != nil || a.status != 200 {
				r.fail("a client got %d, error %v", a.status, a.err)
			}
		}
		r.soon(all, 3)
		r.note("%d arrived", p.count())
	}
}

func markForgets(r *run) {
	var public atomic.Bool
	p := r.page(func(w *writer, n int) {
		public := public.Load()
		r.sleep(w, 1)
		if w.say("Cache-Control: private"); public {
			w.say("Cache-Control: max-age=60")
		}
		w.text("run %d", n)
	})
	r.own(r.herd(r.clients, p))
	second := r.herd(r.clients, p)
	r.own(second)
	r.soon(second, 2)
	public.Store(true)
	for range 2 { // a cache learns of it by the next responses
		r.ask(p)
	}
	p.forget()
	r.same(r.herd(r.clients, p))
	r.arrivals(p, 1)
}

func oneBadAnswer(r *run) {
	p := r.page(func(w *writer, n int) {
		if w.asks("Accept") == "x/odd" {
			w.WriteHeader(http.StatusNotAcceptable)
			return
		}
		w.say("Cache-Control: max-age=3600")
		r.sleep(w, 1)
		w.text("page")
	})
	r.is(r.ask(p), 200, "page")
	for _, wait := range []time.Duration{0, 11 * time.Second} { // a cache may have a memory in front, for some seconds
		r.ask(p, with("Cache-Control: no-cache"), with("Accept: x/odd"))
		time.Sleep(wait)
		p.forget()
		r.are(r.herd(r.clients, p), "page")
		r.arrivals(p, 1)
	}
}

func junkVariants(r *run) {
	var slow atomic.Bool
	p := r.page(func(w *writer, n int) {
		if slow.Load() {
			r.sleep(w, 1)
		}
		w.say("Cache-Control: max-age=60", "Vary: Accept-Encoding").text("page")
	})
	for i := range 40 {
		r.is(r.ask(p, with("Accept-Encoding: junk%d", i)), 200, "page")
	}
	slow.Store(true)
	p.forget()
	r.are(r.herd(r.clients, p, with("Accept-Encoding: gzip")), "page")
	r.arrivals(p, 1)
}

func purgeUnderWay(r *run) {
	var version atomic.Int32
	p := r.page(func(w *writer, n int) {
		if w.req.Method == http.MethodPost {
			version.Add(1)
			w.WriteHeader(http.StatusNoContent)
			return
		}
		v := version.Load()
		r.sleep(w, 1)
		w.say("Cache-Control: max-age=60").text("version %d", v)
	})
	old := make(chan answer, 1)
	go func() { old <- r.ask(p) }()
	r.arrives(p, 1)
	time.Sleep(r.times(0.2))
	if a := r.ask(p, method("POST")); a.err != nil || a.status != 204 {
		r.fail("the POST got %d, error %v", a.status, a.err)
	}
	r.are(r.herd(r.clients, p), "version 1")
	<-old
	r.are(r.herd(r.clients, p), "version 1")
	r.note("%d arrived", p.count())
}
