package middleware_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

var (
	exchanges    = flag.Int("exchanges", 4000, "random exchanges of TestExchangesLeakNothing")
	exchangeSeed = flag.Uint64("exchange-seed", 1, "their seed")
)

// perSession is the number of exchanges with one middleware.
const perSession = 200

// A session is some users' exchanges with one middleware in front of one handler. Requests
// and responses have random headers. Each response is marked with the number of its run, in
// its header, body and trailer.
type session struct {
	rand *rand.Rand // of the goroutine that makes requests
	o    middleware.Options
	by   []string // the ways in which requests tell their users

	mu   sync.Mutex
	runs []*exchangeRun
}

// An exchangeRun is one call of the handler.
type exchangeRun struct {
	identity   string // of the user, as the handler saw it; empty: none
	authorized bool   // it saw Authorization
	says       http.Header
	status     int
	users      map[string]bool // that got a mark of it
}

// pick returns one of some strings, of which "" stands for nothing.
func (s *session) pick(from ...string) string { return from[s.rand.IntN(len(from))] }

// options returns random options.
func (s *session) options() middleware.Options {
	o := middleware.Options{MaxVariants: 1 + s.rand.IntN(8), MaxBody: 1 << 12, Context: nil}
	o.TTL = time.Duration(s.rand.IntN(3)) * time.Second
	o.Stale = time.Duration(s.rand.IntN(2)) * 10 * time.Second
	o.MakeETag, o.Compress, o.StoreSetCookie, o.Heuristic = s.rand.IntN(2) == 0, s.rand.IntN(4) == 0, s.rand.IntN(4) == 0, s.rand.IntN(4) == 0
	o.Cookies = [][]string{nil, nil, {}, {"theme"}}[s.rand.IntN(4)]
	o.Forward = [][]string{nil, nil, {}, {middleware.AllHeaders}, {middleware.AllHeaders}}[s.rand.IntN(5)]
	o.Headers = [][]string{nil, nil, {"X-Color"}, {"X-Tenant"}}[s.rand.IntN(4)]
	o.TrustOrigin, o.StorePost = s.rand.IntN(4) == 0, s.rand.IntN(2) == 0
	if s.rand.IntN(4) == 0 {
		o.Key = func(r *http.Request) string { return r.Header.Get("X-Color") }
	}
	return o
}

// marks are the numbers of runs in a text.
var marks = regexp.MustCompile(`<run (\d+)>`)

var carriers = append([]string{"context", "Cookie: theme"}, identityHeaders...)

// request makes a random request of a user.
func (s *session) request(user string) *http.Request {
	method := s.pick("GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "POST")
	r := request(method+" /"+s.pick("a", "b", "c")+s.pick("", "", "?x=1"), "Host: site.example")
	set := func(name string, values ...string) {
		if v := s.pick(values...); v != "" {
			r.Header.Add(name, v)
		}
	}
	set("Cache-Control", "", "", "", "", "no-cache", "max-age=0", "max-stale", "no-store", "only-if-cached")
	set("Accept", "", "text/html", "odd")
	set("Accept-Language", "", "de", "en")
	set("Accept-Encoding", "", "gzip", "junk")
	set("If-None-Match", "", "", "", "*", `"v1"`)
	set("Range", "", "", "", "bytes=0-3")
	set("X-Color", "", "red", "blue")
	set("X-Request-Id", "", user+"-1")
	set("Connection", "", "", "", "X-Color", "Authorization, Cookie")
	if user == "" {
		return r
	}
	switch carrier := s.by[s.rand.IntN(len(s.by))]; carrier {
	case "context":
		r = r.WithContext(context.WithValue(r.Context(), userKey{}, user))
	case "Cookie: theme":
		r.Header.Add("Cookie", "theme=dark; session="+user)
	case "Cookie":
		r.Header.Add("Cookie", "session="+user)
	default:
		r.Header.Add(carrier, user)
	}
	return r
}

// identityOf is the user that a handler takes a request for.
func identityOf(r *http.Request) string {
	if u, ok := r.Context().Value(userKey{}).(string); ok {
		return u
	}
	if c, err := r.Cookie("session"); err == nil {
		return c.Value
	}
	for _, name := range identityHeaders {
		if v := r.Header.Get(name); v != "" && name != "Cookie" {
			return v
		}
	}
	return ""
}

// plan is a random response.
func (s *session) plan() (status int, h http.Header, took time.Duration, trailer bool) {
	h = http.Header{}
	set := func(name string, values ...string) {
		if v := s.pick(values...); v != "" {
			h.Add(name, v)
		}
	}
	set("Cache-Control", "", "", "max-age=2", "max-age=60", "public, max-age=2", "public", "s-maxage=2", "private", "private, max-age=60",
		"no-store", "no-cache", "max-age=60, must-revalidate", "max-age=1, stale-while-revalidate=30", "public, max-age=1, stale-if-error=30",
		"public, no-store", "private, s-maxage=60", "public, no-cache", "public, max-age=0", `public, max-age=60, private="X-Mark"`, `max-age=60, no-cache="Set-Cookie"`)
	set("CDN-Cache-Control", "", "", "", "", "", "max-age=60", "private")
	set("Vary", "", "", "", "Accept", "Accept-Language, X-Color", "Cookie", "Authorization", "*", "Accept-Encoding")
	set("Etag", "", "", `"v1"`, `W/"v2"`)
	set("Set-Cookie", "", "", "", "", "sid=1")
	set("Content-Encoding", "", "", "", "gzip")
	set("Expires", "", "", "", "0", "Fri, 31 Dec 2100 23:59:59 GMT")
	set("Age", "", "", "", "1", "100")
	status = []int{200, 200, 200, 200, 200, 200, 204, 206, 301, 302, 304, 403, 404, 406, 500, 503}[s.rand.IntN(16)]
	if status == http.StatusPartialContent {
		h.Set("Content-Range", "bytes 0-99/1000") // of no use: a run asks for the whole
	}
	return status, h, time.Duration(s.rand.IntN(4)) * 50 * time.Millisecond, s.rand.IntN(8) == 0
}

// ServeHTTP is the handler. It marks its response, and says in it for which user it is.
func (s *session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	status, says, took, trailer := s.plan()
	if s.rand.IntN(2) == 0 {
		says.Set("Content-Location", r.RequestURI)
	}
	run := &exchangeRun{identity: identityOf(r), authorized: r.Header.Get("Authorization") != "", says: says, status: status, users: map[string]bool{}}
	mark := fmt.Sprintf("<run %d>", len(s.runs))
	s.runs = append(s.runs, run)
	s.mu.Unlock()
	time.Sleep(took)
	for name, values := range says {
		w.Header()[name] = values
	}
	if says.Get("Set-Cookie") != "" {
		w.Header().Set("Set-Cookie", "sid="+mark)
	}
	w.Header().Set("X-Mark", mark)
	if trailer {
		w.Header().Set("Trailer", "X-Trailer")
	}
	w.WriteHeader(status)
	if status != http.StatusNoContent && status != http.StatusNotModified {
		fmt.Fprint(w, mark, strings.Repeat(" for "+run.identity, 1+int(took.Milliseconds())), mark)
	}
	time.Sleep(took)
	if trailer {
		w.Header().Set("X-Trailer", mark)
	}
}

// shareable is the model: whether a response may reach more than one user.
func (run *exchangeRun) shareable(o *middleware.Options) bool {
	cc := run.says.Get("Cache-Control")
	if cdn := run.says.Get("Cdn-Cache-Control"); cdn != "" {
		cc = cdn
	}
	has := func(directive string) bool {
		for part := range strings.SplitSeq(cc, ", ") {
			if part == directive || strings.HasPrefix(part, directive+"=") {
				return true
			}
		}
		return false
	}
	says := has("public") || has("s-maxage")
	switch {
	case run.status == http.StatusPartialContent:
		return false
	case has("no-store"), has("private") && !has(`private="X-Mark"`), strings.Contains(run.says.Get("Vary"), "*"):
		return false
	case run.says.Get("Set-Cookie") != "" && (!o.StoreSetCookie || !says) && !has(`no-cache="Set-Cookie"`):
		return false
	case run.identity != "":
		stated := has("max-age") || run.says.Get("Expires") != "" && run.says.Get("Cdn-Cache-Control") == ""
		trusted := o.TrustOrigin && stated && (!run.authorized || has("must-revalidate"))
		return (says || trusted) && (!has("no-cache") || has(`no-cache="Set-Cookie"`)) && !strings.Contains(cc, "max-age=0")
	}
	return true
}

// got notes the marks of a response that a user has.
func (s *session) got(user string, w *httptest.ResponseRecorder) {
	text := w.Body.String()
	for _, values := range w.Header() {
		text += strings.Join(values, " ")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range marks.FindAllStringSubmatch(text, -1) {
		var n int
		_, _ = fmt.Sscan(m[1], &n)
		s.runs[n].users[user] = true
	}
}

// leaks are the responses that reached more users than they may.
func (s *session) leaks() (found []string) {
	for n, run := range s.runs {
		if len(run.users) > 1 && !run.shareable(&s.o) {
			found = append(found, fmt.Sprintf("run %d for %q, %d %v, reached %v; options %+v", n, run.identity, run.status, run.says, run.users, s.o))
		}
	}
	return found
}

// play plays a session, several requests at a time, and returns its leaks and the number of
// responses that more than one user got.
func play(t *testing.T, seed uint64, o func(s *session) middleware.Options) (found []string, shared int) {
	synctest.Test(t, func(t *testing.T) {
		s := &session{rand: rand.New(rand.NewPCG(seed, 0)), by: carriers}
		s.o = o(s)
		m, err := middleware.New(newStore(t), s.o)
		if err != nil {
			t.Fatal(err)
		}
		h := m.Wrap(s)
		for range perSession / 8 {
			var wg sync.WaitGroup
			for range 8 {
				s.mu.Lock()
				user := s.pick("alice", "bob", "carol", "")
				r := s.request(user)
				s.mu.Unlock()
				wg.Go(func() {
					w := httptest.NewRecorder()
					defer func() { _ = recover() }() // the end of a connection
					defer func() { s.got(user, w) }()
					h.ServeHTTP(w, r)
				})
			}
			wg.Wait()
			time.Sleep(700 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		_ = m.Close()
		for _, run := range s.runs {
			if len(run.users) > 1 {
				shared++
			}
		}
		found = s.leaks()
	})
	return found, shared
}

// go test ./middleware -run Exchanges -exchanges 100000 takes longer.
func TestExchangesLeakNothing(t *testing.T) {
	shared := 0
	for n := range uint64(max(1, *exchanges/perSession)) {
		found, some := play(t, *exchangeSeed+n, (*session).options)
		if shared += some; len(found) > 0 {
			t.Fatalf("-exchange-seed %d: %s", *exchangeSeed+n, strings.Join(found, "\n"))
		}
	}
	if shared == 0 {
		t.Error("no response was shared: the test shows nothing")
	}
}

// Each option takes a rule out.
func TestExchangesFindALeakWithoutARule(t *testing.T) {
	words := []string{"X-Session-Token", "X-Forwarded-User", "Private-Token", "X-Tenant-Id", "Sudo"}
	for name, c := range map[string]struct {
		by      []string
		without func(o *middleware.Options)
	}{
		"words of identity":  {words, func(o *middleware.Options) { o.Forward, o.Headers = append(words, middleware.AllHeaders), nil }},
		"values of contexts": {[]string{"context"}, func(o *middleware.Options) { o.Context = []any{userKey{}} }},
	} {
		t.Run(name, func(t *testing.T) {
			for n := range uint64(20) {
				found, _ := play(t, n, func(s *session) middleware.Options {
					o := s.options()
					o.TTL, s.by = 10*time.Second, c.by
					c.without(&o)
					return o
				})
				if len(found) > 0 {
					return
				}
			}
			t.Errorf("no leak in %d exchanges", 20*perSession)
		})
	}
}
