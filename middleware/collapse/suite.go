package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"
)

// A kind says how much weight a case has.
type kind string

const (
	required kind = "required" // another outcome harms the clients or the origin
	optional kind = "optional" // a quality that good caches have
	fleet    kind = "fleet"    // two caches on one store behave as one
)

// A test is one case.
type test struct {
	name    string
	kind    kind
	expects string
	alone   bool // it disturbs the others: it runs after them
	needs   func(*suite) bool
	run     func(*run)
}

// A suite is one run of the command.
type suite struct {
	caches         []string // host and port
	origin         *origin
	clients        int
	fetch          time.Duration
	bound          int
	parallel       int
	crash, restart string
	log            io.Writer
}

// caseTimeout bounds a case. The clients' own timeouts are shorter.
const caseTimeout = 90 * time.Second

// run runs the cases with names that match.
func (s *suite) run(match *regexp.Regexp) ([]result, error) {
	if s.clients < 4 || s.fetch < 20*time.Millisecond || s.parallel < 1 {
		return nil, errors.New("at least 4 clients, a fetch of 20ms and one case at a time are needed")
	}
	if err := s.reach(); err != nil {
		return nil, err
	}
	var some []test
	for _, c := range cases {
		if match.MatchString(c.name) && (c.needs == nil || c.needs(s)) && (c.kind != fleet || len(s.caches) > 1) {
			some = append(some, c)
		}
	}
	results := make([]result, len(some))
	slots := make(chan struct{}, s.parallel)
	var wg sync.WaitGroup
	for i, c := range some {
		if !c.alone {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				results[i] = s.one(c)
			})
		}
	}
	wg.Wait()
	for i, c := range some {
		if c.alone {
			results[i] = s.one(c)
		}
	}
	return results, nil
}

// reach returns an error if a cache does not forward to the origin.
func (s *suite) reach() error {
	for i, host := range s.caches {
		r := &run{suite: s, name: "reach"}
		p := r.page(func(w *writer, _ int) { w.say("Cache-Control: no-store").text("up") })
		var a answer
		for range 20 {
			if a = r.ask(p, at(i), within(5*time.Second)); a.err == nil && a.status == 200 && string(a.body) == "up" {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if a.err != nil || string(a.body) != "up" {
			return fmt.Errorf("the cache at %s does not forward to the origin at %s: status %d, %.200q, error %v", host, s.origin.addr(), a.status, a.body, a.err)
		}
	}
	return nil
}

// one runs a case. A panic or a timeout is its failure only.
func (s *suite) one(c test) result {
	start := time.Now()
	done := make(chan result, 1)
	go func() {
		r := &run{suite: s, name: c.name}
		defer func() {
			if p := recover(); p != nil {
				r.fail("the case panicked: %v", p)
			}
			done <- r.result(c)
		}()
		c.run(r)
	}()
	res := result{c.name, c.kind, false, fmt.Sprintf("no end after %v", caseTimeout)}
	select {
	case res = <-done:
	case <-time.After(caseTimeout):
	}
	verdict := "fail"
	if res.Pass {
		verdict = "pass"
	}
	fmt.Fprintf(s.log, "%s  %-20s %5.1fs  %s\n", verdict, c.name, time.Since(start).Seconds(), res.Detail)
	return res
}

// A run is one run of a case.
type run struct {
	*suite
	name string

	mu     sync.Mutex
	faults []string
	notes  []string
}

func (r *run) result(c test) result {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.faults) > 0 {
		return result{c.name, c.kind, false, strings.Join(shortened(r.faults), "; ")}
	}
	return result{c.name, c.kind, true, strings.Join(r.notes, "; ")}
}

// shortened is a list without repetitions and of a length that can be read.
func shortened(all []string) []string {
	var some []string
	seen := map[string]bool{}
	for _, s := range all {
		if !seen[s] {
			seen[s] = true
			some = append(some, s)
		}
	}
	if more := len(some) - 4; more > 0 {
		some = append(some[:4], fmt.Sprintf("and %d more", more))
	}
	return some
}

// fail notes why the case fails.
func (r *run) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// note adds to the detail of a case that passes.
func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// page makes a page of the origin under a URL of its own.
func (r *run) page(h func(w *writer, n int)) *page {
	return r.origin.add(fmt.Sprintf("/%s/%016x", r.name, rand.Uint64()), h)
}

// slow is a page that takes a fetch time, has a lifetime, and tells its run.
func (r *run) slow(lines ...string) *page {
	return r.page(func(w *writer, n int) {
		r.sleep(w, 1)
		w.say("Cache-Control: max-age=60").say(lines...).text("run %d", n)
	})
}

// sleep takes so many fetch times at the origin, or less if the request ends.
func (r *run) sleep(w *writer, fetches float64) {
	select {
	case <-time.After(r.times(fetches)):
	case <-w.req.Context().Done():
	}
}

func (r *run) times(fetches float64) time.Duration { return time.Duration(fetches * float64(r.fetch)) }

// together runs n clients at once.
func (r *run) together(n int, client func(i int) answer) []answer {
	all := make([]answer, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { all[i] = client(i) })
	}
	wg.Wait()
	return all
}

// herd sends n requests at once.
func (r *run) herd(n int, p *page, opts ...option) []answer {
	return r.together(n, func(int) answer { return r.ask(p, opts...) })
}

// led sends one request, waits until it has arrived at the origin, and sends the herd.
// The leader's answer is the first.
func (r *run) led(p *page, leader []option, opts ...option) []answer {
	first := make(chan answer, 1)
	go func() { first <- r.ask(p, leader...) }()
	r.arrives(p, 1)
	herd := r.herd(r.clients, p, opts...)
	return append([]answer{<-first}, herd...)
}

// arrives waits until n requests have arrived at the page.
func (r *run) arrives(p *page, n int) {
	for end := time.Now().Add(5 * time.Second); p.count() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			panic(fmt.Sprintf("%d requests arrived at the origin within 5s, want %d", p.count(), n))
		}
	}
}

// arrivals fails the case if more requests have arrived at the page.
func (r *run) arrivals(p *page, most int) {
	n := p.count()
	if r.note("%d arrived", n); n > most {
		r.fail("%d requests arrived at the origin, want at most %d", n, most)
	}
}

// are fails the case if an answer is not 200 with the body.
func (r *run) are(all []answer, body string) {
	for _, a := range all {
		r.is(a, 200, body)
	}
}

// is fails the case if the answer is another one.
func (r *run) is(a answer, status int, body string) {
	switch {
	case a.err != nil:
		r.fail("a client got the error %v", a.err)
	case a.status != status:
		r.fail("a client got %d, want %d", a.status, status)
	case string(a.body) != body:
		r.fail("a client got %d bytes, %.40q, want %d, %.40q", len(a.body), a.body, len(body), body)
	}
}

// slack is for the time of a busy machine, in fetch times.
const slack = 0.5

// soon fails the case if an answer took more than so many fetch times.
func (r *run) soon(all []answer, fetches float64) {
	var worst time.Duration
	for _, a := range all {
		worst = max(worst, a.end.Sub(a.start))
	}
	if r.note("%.2fs", worst.Seconds()); worst > r.times(fetches+slack) {
		r.fail("the last client had its answer after %.2fs, want %.2fs", worst.Seconds(), r.times(fetches).Seconds())
	}
}

// own fails the case if an answer is not 200, or two clients got the same body.
func (r *run) own(all []answer) {
	seen := map[string]bool{}
	for _, a := range all {
		switch {
		case a.err != nil || a.status != 200:
			r.fail("a client got %d, error %v", a.status, a.err)
		case seen[string(a.body)]:
			r.fail("two clients got the same page")
		}
		seen[string(a.body)] = true
	}
}

// partless fails the case if an answer that looks whole is a part of the body.
func (r *run) partless(all []answer, whole string) (broken int) {
	for _, a := range all {
		switch {
		case a.err != nil || a.status >= 500:
			broken++
		case a.status == 200 && string(a.body) != whole:
			r.fail("a client got %d of %d bytes as a whole page", len(a.body), len(whole))
		}
	}
	return broken
}

// shell runs a command of the options.
func (r *run) shell(line string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "sh", "-c", line).CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%s: %v: %s", line, err, out))
	}
}
