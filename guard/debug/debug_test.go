package debug_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/debug"
)

func newPage(t *testing.T, opts debug.Options) *debug.Page {
	t.Helper()
	p, err := debug.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func newGuard(t *testing.T, name string, p *debug.Page, change ...func(*guard.Policy)) *guard.Guard[string] {
	t.Helper()
	s, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	policy := guard.Policy{TTL: time.Minute, Observer: p}
	for _, c := range change {
		c(&policy)
	}
	g, err := guard.New[string](s, name, policy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close(); _ = s.Close() })
	return g
}

func value(context.Context) (string, error) { return "v", nil }

func ask(p http.Handler, method, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

func body(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	return w.Body.String()
}

func report(t *testing.T, p http.Handler, query string) (r debug.Report) {
	t.Helper()
	if err := json.Unmarshal([]byte(body(t, ask(p, "GET", "/?format=json"+query))), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// paused makes the guard pause the key.
func paused(t *testing.T, g *guard.Guard[string], key, why string) {
	t.Helper()
	for range 2 { // the second caller learns of the pause
		_, err := g.Get(t.Context(), key, func(context.Context) (string, error) {
			return "", guard.RetryAfter(errors.New(why), time.Hour)
		})
		if err == nil {
			t.Fatal("the fetch did not fail")
		}
	}
}

func TestReportCountsCallsAndFlights(t *testing.T) {
	p := newPage(t, debug.Options{})
	g := newGuard(t, "users", p)
	for range 4 {
		_, _ = g.Get(t.Context(), "k", value)
	}
	began, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = g.Get(context.Background(), "slow", func(context.Context) (string, error) { close(began); <-end; return "v", nil })
	}()
	<-began
	r := report(t, p, "").Guards[0]
	close(end)
	<-done
	if r.Requests != 4 || r.Hit != .75 || r.Miss != .25 || r.Fetching != 1 || r.InFlight != 1 {
		t.Errorf("reported %+v, want 4 requests, 3 of them hits, and one fetch", r)
	}
	if f := r.Flights[0]; f.Key != "slow" || f.Role != "fetching" || f.Callers != 1 || f.Attempt != 1 || f.Holder != "this process" {
		t.Errorf("the flight is %+v", f)
	}
}

func TestFormatFollowsTheRequest(t *testing.T) {
	p := newPage(t, debug.Options{})
	newGuard(t, "users", p)
	for _, test := range []struct{ target, accept, want string }{
		{"/", "", "text/html; charset=utf-8"},
		{"/", "text/html,application/json", "text/html; charset=utf-8"},
		{"/", "application/json", "application/json"},
		{"/?format=json", "text/html", "application/json"},
	} {
		if got := ask(p, "GET", test.target, "Accept", test.accept).Header().Get("Content-Type"); got != test.want {
			t.Errorf("%s of a client that accepts %q is %s, want %s", test.target, test.accept, got, test.want)
		}
	}
	if !json.Valid([]byte(p.String())) {
		t.Error("String is no JSON")
	}
}

func TestHostileKeysAndErrorsAreEscaped(t *testing.T) {
	p := newPage(t, debug.Options{AllowReset: true})
	g := newGuard(t, "users", p)
	hostile := "<script>alert(1)</script>\"'\x00\xff\u202e" + strings.Repeat("A", 1<<20)
	paused(t, g, hostile, `<img src=x onerror=alert(2)>`+"\x1b[2J\u202e")
	page := body(t, ask(p, "GET", "/"))
	for _, bad := range []string{"<script>alert", "<img", "\x00", "\x1b", "\u202e", strings.Repeat("A", 1000)} {
		if strings.Contains(page, bad) && bad != strings.Repeat("A", 1000) {
			t.Errorf("the page has %q", bad)
		}
	}
	if !strings.Contains(page, "&lt;script&gt;alert(1)&lt;/script&gt;") || !strings.Contains(page, "bytes)") {
		t.Error("the key is not on the page, escaped and cut")
	}
}

func TestKeysAreHiddenWhereAsked(t *testing.T) {
	for name, test := range map[string]struct {
		opts   debug.Options
		policy bool
	}{
		"by the page":   {opts: debug.Options{HideKeys: true, AllowReset: true}},
		"by the policy": {opts: debug.Options{AllowReset: true}, policy: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPage(t, test.opts)
			g := newGuard(t, "users", p, func(p *guard.Policy) { p.HideKeys = test.policy })
			paused(t, g, "secret", "no")
			if page := body(t, ask(p, "GET", "/")) + p.String(); strings.Contains(page, "secret") || strings.Contains(page, "736563726574") {
				t.Error("the page shows the key")
			}
			if r := report(t, p, "").Guards[0]; len(r.Stopped) != 1 {
				t.Errorf("%d stopped keys, want 1", len(r.Stopped))
			}
		})
	}
}

func TestResettingIsOptInAndNeedsTheToken(t *testing.T) {
	post := func(p *debug.Page, form url.Values, header ...string) int {
		r := httptest.NewRequest("POST", "http://app.example/debug", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		return w.Code
	}
	off := newPage(t, debug.Options{})
	newGuard(t, "users", off)
	if code := post(off, url.Values{"guard": {"users"}, "key": {"6b"}}); code != http.StatusForbidden {
		t.Errorf("a reset that is off is answered %d", code)
	}
	if page := body(t, ask(off, "GET", "/")); strings.Contains(page, `method="post"`) {
		t.Error("the page has a form by default")
	}

	p := newPage(t, debug.Options{AllowReset: true})
	g := newGuard(t, "users", p)
	key := "k\xff\r\n"
	paused(t, g, key, "no")
	page := body(t, ask(p, "GET", "/"))
	field := func(name string) string {
		return regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(page)[1]
	}
	good := url.Values{"guard": {field("guard")}, "key": {field("key")}, "token": {field("token")}}
	wrong := url.Values{"guard": {"users"}, "key": {field("key")}, "token": {"x"}}
	if code := post(p, wrong); code != http.StatusForbidden {
		t.Errorf("a wrong token is answered %d", code)
	}
	if code := post(p, good, "Sec-Fetch-Site", "cross-site"); code != http.StatusForbidden {
		t.Errorf("another site is answered %d", code)
	}
	if code := ask(p, "GET", "/?"+good.Encode()).Code; code != http.StatusOK {
		t.Errorf("a GET is answered %d", code)
	}
	if _, err := g.Get(t.Context(), key, value); err == nil {
		t.Fatal("the key was reset without a right to")
	}
	if code := post(p, good, "Sec-Fetch-Site", "same-origin"); code != http.StatusSeeOther {
		t.Errorf("the reset is answered %d", code)
	}
	if _, err := g.Get(t.Context(), key, value); err != nil {
		t.Errorf("after the reset Get returns %v", err)
	}
	if r := report(t, p, "").Guards[0]; len(r.Stopped) != 0 {
		t.Errorf("still listed: %+v", r.Stopped)
	}
}

func TestPageAsksTheStoreForAKey(t *testing.T) {
	p := newPage(t, debug.Options{})
	paused(t, newGuard(t, "users", p), "k<b>", "no")
	k := report(t, p, "&guard=users&key="+url.QueryEscape("k<b>")).Key
	if k == nil || k.Key != "k<b>" || k.Pause < 3000 || k.Holder != "" || k.Error != "" {
		t.Errorf("the key is %+v, want a pause of an hour", k)
	}
	if page := body(t, ask(p, "GET", "/?guard=users&key="+url.QueryEscape("k<b>"))); strings.Contains(page, "<b>") || !strings.Contains(page, "k&lt;b&gt;") {
		t.Error("the key is not on the page, or not escaped")
	}
	if k := report(t, p, "&guard=none&key=k").Key; k == nil || k.Error == "" {
		t.Errorf("of an unknown guard: %+v", k)
	}
	hidden := newPage(t, debug.Options{HideKeys: true})
	newGuard(t, "users", hidden)
	if k := report(t, hidden, "&guard=users&key=k").Key; k != nil {
		t.Errorf("a page that hides keys tells of %+v", k)
	}
}

func TestListsAreBoundedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t, debug.Options{})
		s, err := cache.NewMemory(cache.MemoryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		const guards, keys = 1000, 2000
		for i := range guards {
			g, err := guard.New[string](s, fmt.Sprintf("g%d", i), guard.Policy{TTL: time.Minute, Observer: p})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = g.Close() }()
			if i > 0 {
				continue
			}
			end := make(chan struct{})
			defer close(end)
			for k := range keys {
				go func() {
					_, _ = g.Get(context.Background(), fmt.Sprint(k), func(context.Context) (string, error) { <-end; return "v", nil })
				}()
			}
			for k := range 100 {
				p.Observe(cache.Event{Kind: cache.KeyPaused, Guard: "g0", Key: fmt.Sprint(k), Duration: time.Hour})
			}
			synctest.Wait()
		}
		r := report(t, p, "")
		if len(r.Guards) != 50 || r.Total != guards {
			t.Errorf("%d of %d guards, want 50 of %d", len(r.Guards), r.Total, guards)
		}
		one := report(t, p, "&guard=g0").Guards
		if len(one) != 1 || len(one[0].Flights) != 20 || one[0].InFlight != keys || len(one[0].Stopped) != 20 || one[0].MoreStops != 80 {
			t.Errorf("%d flights of %d, %d stopped and %d more; want 20 of %d, 20 and 80",
				len(one[0].Flights), one[0].InFlight, len(one[0].Stopped), one[0].MoreStops, keys)
		}
		if page := body(t, ask(p, "GET", "/")); len(page) > 1<<20 {
			t.Errorf("the page has %d bytes", len(page))
		}
		_ = s.Close()
	})
}

func TestChartsShowTheLastMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t, debug.Options{})
		g := newGuard(t, "users", p)
		_, _ = g.Get(t.Context(), "k", value)
		time.Sleep(2 * time.Second) // fake: calls and samples take turns
		for range 70 {
			for range 10 {
				_, _ = g.Get(t.Context(), "k", value)
			}
			time.Sleep(5 * time.Second)
			_ = g.Set(t.Context(), "k", "v")
		}
		rates := report(t, p, "").Guards[0].Rates
		if len(rates.Hits) != 60 || rates.Hits[59] != 2 || rates.Misses[59] != 0 {
			t.Errorf("rates %+v, want 60 of 2 hits a second", rates)
		}
	})
}

// BenchmarkPage is the cost of the page with a thousand guards.
func BenchmarkPage(b *testing.B) {
	p, _ := debug.New(debug.Options{})
	s, _ := cache.NewMemory(cache.MemoryOptions{})
	for i := range 1000 {
		g, err := guard.New[string](s, fmt.Sprintf("g%d", i), guard.Policy{TTL: time.Minute, Observer: p})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = g.Close() })
	}
	for b.Loop() {
		ask(p, "GET", "/")
	}
}
