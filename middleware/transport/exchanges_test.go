package transport_test

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
	"github.com/stampedeguard/stampede/middleware/transport"
)

var (
	exchanges    = flag.Int("exchanges", 4000, "random exchanges of TestExchangesKeepVersionsAndUsersApart")
	exchangeSeed = flag.Uint64("exchange-seed", 1, "their seed")
)

// perSession is the number of exchanges with one upstream.
const perSession = 200

// A session is two users' exchanges with an upstream, through the transports of two processes.
// Requests and responses have random headers. /same is the same for all, /own is for its user,
// and /tongue varies on the language. All change now and then.
type session struct {
	*testing.T
	rts []*transport.Transport
	o   transport.Options

	mu       sync.Mutex
	rand     *rand.Rand
	versions map[string]int // the present one of each path
	floor    map[string]int // the oldest version that a user may get of a path
	runs     []string       // the Cache-Control of each response
	seen     map[string]int // clients that got a response that was not to be stored
	counts   map[string]int // of events that the test is about
	found    []string
}

func (s *session) pick(from ...string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return from[s.rand.IntN(len(from))]
}

func (s *session) oneIn(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.IntN(n) == 0
}

func (s *session) count(event string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[event]++
}

// content is that of a version. Its length differs from version to version.
func content(path string, version int, user, lang string) string {
	text := fmt.Sprintf("%s,%d", path, version)
	switch path {
	case "/own":
		text += "," + user
	case "/tongue":
		text += "," + lang
	}
	return strings.Repeat(text+";", 4+version%3)
}

// RoundTrip is the upstream.
func (s *session) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(time.Duration(len(s.pick("", "x", "xxxx"))) * 20 * time.Millisecond)
	path, user := req.URL.Path, req.Header.Get("Authorization")
	w := httptest.NewRecorder()
	h := w.Header()
	says := s.pick("max-age=2", "max-age=60", "public, max-age=2", "public, max-age=60", "public, max-age=1, stale-while-revalidate=9",
		"public, max-age=2, stale-if-error=60", "no-cache", "public, no-store, max-age=60")
	switch path {
	case "/own":
		says = s.pick("private, max-age=2", "private, max-age=60", "private, no-store, max-age=60")
	case "/tongue":
		h.Set("Vary", "Accept-Language")
	}
	changes := req.Method == http.MethodPost || s.oneIn(30)
	s.mu.Lock()
	if changes {
		s.versions[path]++
	}
	version := s.versions[path]
	text := content(path, version, user, req.Header.Get("Accept-Language"))
	h.Set("X-Run", fmt.Sprint(len(s.runs)))
	s.runs = append(s.runs, says)
	s.mu.Unlock()
	h.Set("Cache-Control", says)
	h.Set("Content-Type", "text/plain")
	h.Set("Etag", s.pick("", "", "", "W/")+fmt.Sprintf(`"%x"`, text[:len(text)/(4+version%3)]))
	if s.oneIn(8) {
		h.Set("Set-Cookie", "sid="+user)
	}
	switch {
	case req.Method == http.MethodPost:
		h.Set("Content-Location", path)
		h.Set("X-Posted", "yes")
		_, _ = io.WriteString(w, text)
	case s.oneIn(15):
		clear(h)
		w.WriteHeader(503)
	case s.oneIn(10): // it ignores ranges
		_, _ = io.WriteString(w, text)
	case s.oneIn(15): // or sends others
		h.Set("Content-Range", fmt.Sprintf("bytes 1-3/%d", len(text)))
		w.WriteHeader(206)
		_, _ = io.WriteString(w, text[1:4])
	default:
		http.ServeContent(w, req, "", time.Time{}, strings.NewReader(text))
		switch {
		case w.Code == 304 && req.Header.Get("Range") != "":
			s.count("part validated")
		case w.Code == 206 && req.Header.Get("X-Whole") != "":
			s.count("part completed")
		}
	}
	resp := w.Result()
	if s.oneIn(20) { // the body breaks off, and no length tells
		resp.ContentLength = -1
		resp.Body = io.NopCloser(io.MultiReader(io.LimitReader(resp.Body, 7), broken{}))
	}
	return resp, nil
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// exchange makes a random request and judges its answer.
func (s *session) exchange() {
	user, path, lang := s.pick("alice", "bob"), s.pick("/same", "/own", "/tongue"), s.pick("de", "en")
	req, _ := http.NewRequestWithContext(s.Context(), s.pick(append([]string{"HEAD", "POST", "PURGE"}, slices.Repeat([]string{"GET"}, 20)...)...), "http://api.example"+path, nil)
	req.Header.Set("Authorization", user)
	req.Header.Set("Accept-Language", lang)
	switch r := s.pick("", "bytes=0-9", "bytes=10-", "bytes=-5", "bytes=4-12", "bytes=0-0"); {
	case req.Method == http.MethodGet && r != "":
		req.Header.Set("Range", r)
	case req.Method == http.MethodGet:
		req.Header.Set("X-Whole", "1")
	}
	if cc := s.pick("", "", "", "", "no-cache", "max-age=0", "max-stale", "only-if-cached", "no-store"); cc != "" {
		req.Header.Set("Cache-Control", cc)
	}
	s.mu.Lock()
	rt, least, now := s.rts[s.rand.IntN(len(s.rts))], s.floor[user+path], s.versions[path]
	old := content(path, now-1, user, lang)
	s.mu.Unlock()
	if req.Header.Get("Range") != "" && s.oneIn(4) {
		req.Header.Set("If-Range", fmt.Sprintf(`"%x"`, old[:strings.IndexByte(old, ';')+1]))
	}
	if req.Method == "PURGE" {
		req.Method = http.MethodGet
		if err := rt.Purge(req); err != nil {
			s.Error(err)
		}
		s.raise(user, path, now)
		return
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return
	}
	if req.Method == http.MethodPost && resp.StatusCode < 400 { // invalidated before its header
		s.raise(user, path, now)
	}
	body := resp.Body
	if s.oneIn(10) {
		body = io.NopCloser(io.LimitReader(body, 5)) // the client leaves
	}
	text, err := io.ReadAll(body)
	resp.Body.Close()
	if err != nil || len(text) == 5 && resp.ContentLength != 5 || req.Method == http.MethodHead {
		return
	}
	s.judge(req, resp, string(text), least)
}

// raise notes that a user gets no version of a path from before a write or a purge.
func (s *session) raise(user, path string, version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range []string{"alice", "bob"} {
		if u == user || s.o.Shared {
			s.floor[u+path] = max(s.floor[u+path], version)
		}
	}
}

func (s *session) judge(req *http.Request, resp *http.Response, text string, least int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part, partial := rfc9111.PartOf(resp.StatusCode, resp.Header)
	if resp.StatusCode != 200 && !partial {
		return
	}
	path, matches := req.URL.Path, -1
	for v := s.versions[path]; v >= 0 && matches < 0; v-- {
		whole := content(path, v, req.Header.Get("Authorization"), req.Header.Get("Accept-Language"))
		if partial && int64(len(whole)) == part.Total {
			whole = whole[part.First : part.Last+1]
		}
		if whole == text {
			matches = v
		}
	}
	hit := strings.Contains(resp.Header.Get("Cache-Status"), "hit")
	if hit && resp.Header.Get("X-Posted") != "" {
		s.counts["answer of a POST"]++
	}
	var run int
	_, _ = fmt.Sscan(resp.Header.Get("X-Run"), &run)
	if strings.Contains(s.runs[run], "no-store") {
		s.seen[resp.Header.Get("X-Run")]++
	}
	at := fmt.Sprintf("%s %s with %v: %d %v %q", req.Method, path, req.Header, resp.StatusCode, resp.Header, text)
	switch {
	case matches < 0:
		s.found = append(s.found, "no version and user has this content: "+at)
	case matches < least:
		s.found = append(s.found, fmt.Sprintf("version %d from before %d: %s", matches, least, at))
	case hit && s.seen[resp.Header.Get("X-Run")] > 0, s.seen[resp.Header.Get("X-Run")] > 1:
		s.found = append(s.found, "a response with no-store was kept: "+at)
	}
	if want := req.Header.Get("If-Range"); partial && want != "" && (hit || strings.Contains(resp.Header.Get("Cache-Status"), "fwd-status=304")) && resp.Header.Get("Etag") != want {
		s.found = append(s.found, "a part that If-Range did not ask for: "+at)
	}
}

// play plays a session, several requests at a time.
func play(t *testing.T, seed uint64, counts map[string]int) (found []string) {
	synctest.Test(t, func(t *testing.T) {
		s := &session{
			T: t, rand: rand.New(rand.NewPCG(seed, 0)), versions: map[string]int{}, floor: map[string]int{}, seen: map[string]int{}, counts: counts,
		}
		s.o = transport.Options{Base: s, StorePost: true, Shared: seed%3 == 0, StoreSetCookie: seed%4 == 0}
		s.o.MaxBody = []int{20, 1 << 10}[min(1, seed%5)]
		for i, open := 0, memoryFleet(t); i < 2; i++ {
			s.rts = append(s.rts, newTransport(t, open(), func(o *transport.Options) { *o = s.o }))
		}
		for range perSession / 4 {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(s.exchange)
			}
			wg.Wait()
			time.Sleep(700 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		found = s.found
	})
	return found
}

// Each answer is of one version, which is not from before a write or a purge that was over when
// the request came, and for its user. go test ./middleware/transport -run Exchanges -exchanges
// 20000 takes longer.
func TestExchangesKeepVersionsAndUsersApart(t *testing.T) {
	counts := map[string]int{}
	for n := range uint64(max(1, *exchanges/perSession)) {
		if found := play(t, *exchangeSeed+n, counts); len(found) > 0 {
			t.Fatalf("-exchange-seed %d: %s", *exchangeSeed+n, strings.Join(found[:min(len(found), 5)], "\n"))
		}
	}
	for _, event := range []string{"part validated", "part completed", "answer of a POST"} {
		if counts[event] == 0 {
			t.Errorf("no %s: the test shows nothing of it", event)
		}
	}
	t.Log(counts)
}
