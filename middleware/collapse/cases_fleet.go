package main

import (
	"net/http"
	"sync/atomic"
	"time"
)

func fleetMiss(r *run) {
	p := r.slow()
	all := r.together(2*r.clients, func(i int) answer { return r.ask(p, at(i%2)) })
	r.are(append(all, r.ask(p, at(0)), r.ask(p, at(1))), "run 1")
	r.soon(all, 3)
	r.arrivals(p, 1)
}

func fleetPurge(r *run) {
	var version atomic.Int32
	p := r.page(func(w *writer, n int) {
		if w.req.Method == http.MethodPost {
			version.Add(1)
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.say("Cache-Control: max-age=60").text("version %d", version.Load())
	})
	r.are([]answer{r.ask(p, at(0)), r.ask(p, at(1))}, "version 0")
	r.is(r.ask(p, at(1), method("POST")), 204, "")
	time.Sleep(100 * time.Millisecond) // for news between the caches
	r.are(r.together(r.clients, func(i int) answer { return r.ask(p, at(i%2)) }), "version 1")
}

// fleetCrash kills the first cache, which fetches for both.
func fleetCrash(r *run) {
	p := r.page(func(w *writer, n int) {
		r.sleep(w, 4)
		w.say("Cache-Control: max-age=60").text("run %d", n)
	})
	leader, err := r.open(p, at(0))
	if err != nil {
		panic(err)
	}
	defer leader.Close()
	r.arrives(p, 1)
	time.AfterFunc(r.times(1), func() {
		defer func() {
			if why := recover(); why != nil {
				r.fail("%v", why)
			}
		}()
		r.shell(r.crash)
	})
	all := r.herd(r.clients, p, at(1))
	r.same(all)
	r.soon(all, 8)
	r.arrivals(p, 2)
}

func restart(r *run) {
	p := r.page(func(w *writer, n int) {
		r.sleep(w, 2)
		w.say("Cache-Control: max-age=60").text("page")
	})
	done := make(chan []answer, 1)
	go func() { done <- r.herd(r.clients, p) }()
	r.arrives(p, 1)
	r.shell(r.restart)
	r.is(r.ask(p), 200, "page")
	all := <-done
	r.note("%d of %d clients got an error", r.partless(all, "page"), len(all))
	r.soon(all, 20)
}
