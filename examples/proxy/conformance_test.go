package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// The tables of conformance_*_test.go ask of the running proxy the same as the
// public suite http-tests/cache-tests asks of any cache: the upstream's bytes are
// scripted, the client sees bytes, and nothing else is known. Time is told by Age:
// a response that arrives with an Age above its lifetime is stale.

// A story is a few requests for one URL, one after the other.
type story struct {
	name  string
	steps []step
}

// A step is a request, the upstream's answer if it is asked, and the required
// outcome.
type step struct {
	method string   // default GET
	path   string   // appended to the story's own; "?a=b" or "/b"
	send   []string // the request's header lines

	// The upstream's answer. Raw, if it isn't empty, is all of it, and the
	// connection is closed after it. The default body says which request it answers.
	status int // default 200
	header []string
	body   string
	raw    string

	want       outcome
	wantStatus int // default: status, and 200 of a cached response
	wantBody   string
	wantHeader []string // "Name: value", or "Name:" for one that must not be there
	until      string   // repeat until this is the body: a sent response may be stored a moment later
	asked      []string // lines that the upstream must have been sent, as wantHeader
	wantURI    string   // the URI that the upstream must have been asked for; as path
}

// An outcome is the source of the answer.
type outcome string

const (
	origin    outcome = "origin"    // the upstream, to this very request
	cached    outcome = "cached"    // the upstream was not asked
	validated outcome = "validated" // the upstream was asked on a condition, and the stored body served
	stale     outcome = "stale"     // the stored body, and the upstream is asked in the background
	instead   outcome = "instead"   // the upstream was asked, and the stored body served instead of its answer
	either    outcome = "either"    // no matter
)

// A scripted upstream answers by the step that is under way.
type scripted struct {
	t  *testing.T
	mu sync.Mutex

	prefix string
	step   *step
	n      int // requests of the story
	last   *http.Request
}

func (s *scripted) begin(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prefix, s.step, s.n, s.last = prefix, nil, 0, nil
}

func (s *scripted) at(st *step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step, s.last = st, nil
}

func (s *scripted) asked() (n int, last *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n, s.last
}

func (s *scripted) listen() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return "http://" + l.Addr().String()
}

func (s *scripted) serve(conn net.Conn) {
	defer conn.Close()
	b := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(b)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		answer, last := s.answer(req)
		if _, err := io.WriteString(conn, answer); err != nil || last {
			return
		}
	}
}

func (s *scripted) answer(req *http.Request) (text string, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.HasPrefix(req.URL.Path, s.prefix) || s.step == nil {
		return "HTTP/1.1 500 Stray\r\nContent-Length: 0\r\n\r\n", false
	}
	s.n++
	s.last = req
	st := s.step
	if st.raw != "" {
		return st.raw, true
	}
	status, body := st.status, st.body
	if status == 0 {
		status = 200
	}
	if body == "" {
		body = fmt.Sprintf("answer %d", s.n)
	}
	var text2 strings.Builder
	fmt.Fprintf(&text2, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	dated := false
	for _, line := range st.header {
		dated = dated || strings.HasPrefix(line, "Date:")
		text2.WriteString(line + "\r\n")
	}
	if !dated {
		text2.WriteString("Date: " + time.Now().UTC().Format(http.TimeFormat) + "\r\n")
	}
	switch {
	case status == 204 || status == 304:
		text2.WriteString("\r\n")
	case req.Method == http.MethodHead:
		fmt.Fprintf(&text2, "Content-Length: %d\r\n\r\n", len(body))
	default:
		fmt.Fprintf(&text2, "Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	return text2.String(), false
}

// startOn starts a proxy in front of the server that listens there.
func startOn(t *testing.T, c config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// tell runs stories against a proxy with the given arguments, one after the other.
func tell(t *testing.T, stories []story, args ...string) {
	s := &scripted{t: t}
	c, err := parse(append([]string{"-upstream", s.listen(), "-via", "proxy"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	addr := startOn(t, c)
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	for i, st := range stories {
		t.Run(st.name, func(t *testing.T) {
			prefix := fmt.Sprintf("/story%d-", i)
			s.begin(prefix)
			first := ""
			for j := range st.steps {
				first = run(t, s, tr, "http://"+addr+prefix, j, &st.steps[j], first)
			}
		})
	}
}

// run makes a step's request, and returns the body that is stored from then on, as
// far as the step tells.
func run(t *testing.T, s *scripted, tr *http.Transport, url string, i int, st *step, stored string) string {
	t.Helper()
	began := time.Now()
	before, _ := s.asked()
	s.at(st)
	method := st.method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url+st.path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range st.send {
		name, value, _ := strings.Cut(line, ":")
		req.Header[http.CanonicalHeaderKey(name)] = append(req.Header[http.CanonicalHeaderKey(name)], strings.TrimSpace(value))
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
		req.Header.Del("Host")
	}
	for st.until != "" {
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) == st.until {
			break
		}
		if t.Context().Err() != nil || time.Since(began) > 10*time.Second {
			t.Fatalf("step %d: still %q, want %q", i+1, body, st.until)
		}
	}
	resp, err := tr.RoundTrip(req) //nolint:bodyclose // closed at the end, or before the next
	if err != nil {
		t.Fatalf("step %d: %v", i+1, err)
	}
	for n := before; st.want == origin && n == before && strings.Contains(resp.Header.Get("Cache-Status"), "collapsed"); n, _ = s.asked() {
		// A failure is shared with requests that come before it is over, which is a moment
		// after it was sent.
		resp.Body.Close()
		if resp, err = tr.RoundTrip(req); err != nil { //nolint:bodyclose // as above
			t.Fatalf("step %d: %v", i+1, err)
		}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("step %d: %v, after %q", i+1, err, body)
	}
	for n, _ := s.asked(); st.want == stale && n == before; n, _ = s.asked() {
		// It is asked in the background; or not yet, by a request that came before the
		// last response had been stored, and shared it.
		again, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
		_, _ = io.Copy(io.Discard, again.Body)
		again.Body.Close()
		if time.Since(began) > 10*time.Second {
			t.Fatalf("step %d: the upstream isn't asked", i+1)
		}
	}
	n, last := s.asked()
	where := func(format string, args ...any) {
		t.Helper()
		t.Errorf("step %d: %s; got %d %q %v, the upstream was asked %d times", i+1, fmt.Sprintf(format, args...), resp.StatusCode, body, resp.Header, n-before)
	}
	if st.want != either && (n-before != 0) != (st.want != cached) {
		where("want %s", st.want)
	}
	own := fmt.Sprintf("answer %d", n)
	if st.body != "" {
		own = st.body
	}
	want := st.wantBody
	wantStatus := st.wantStatus
	switch {
	case st.want == origin || st.want == "":
		if wantStatus == 0 {
			wantStatus = st.status
		}
		if want == "" && st.raw == "" {
			want = own
		}
	case st.until != "":
		want = st.until
	case want == "":
		want = stored
	}
	if wantStatus == 0 {
		wantStatus = 200
	}
	if resp.StatusCode != wantStatus {
		where("want status %d", wantStatus)
	}
	if method == http.MethodHead || st.want == either || wantStatus == 204 || wantStatus == 304 || wantStatus == 416 {
		want = ""
	}
	if wantStatus != 416 && st.want != either && string(body) != want && (want != "" || st.raw == "") {
		where("want body %q", want)
	}
	checkLines(where, resp.Header, st.wantHeader)
	if st.asked != nil && last == nil {
		where("the upstream wasn't asked")
	} else if st.asked != nil {
		checkLines(func(format string, args ...any) { where("asked: "+format, args...) }, last.Header, st.asked)
	}
	if st.wantURI != "" && (last == nil || !strings.HasSuffix(last.RequestURI, st.wantURI)) {
		where("want %s asked for, not %v", st.wantURI, last)
	}
	if st.want == validated && last != nil && last.Header.Get("If-None-Match") == "" && last.Header.Get("If-Modified-Since") == "" {
		where("asked without a condition: %v", last.Header)
	}
	if st.want == origin && method == http.MethodGet && (resp.StatusCode == 200 || stored == "") {
		return string(body)
	}
	if st.until != "" {
		return st.until
	}
	if st.want == stale && st.status != 304 && st.raw == "" {
		return own
	}
	return stored
}

func checkLines(fail func(string, ...any), h http.Header, lines []string) {
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ":")
		name, value = http.CanonicalHeaderKey(name), strings.TrimSpace(value)
		got := strings.Join(h[name], ", ")
		switch {
		case value == "" && len(h[name]) > 0:
			fail("want no %s", name)
		case value == "*" && len(h[name]) == 0:
			fail("want some %s", name)
		case value != "" && value != "*" && got != value:
			fail("want %s %q, not %q", name, value, got)
		}
	}
}

// twice is a story of a response, and whether it is used again.
func twice(name string, again outcome, header ...string) story {
	return story{name, []step{{header: header, want: origin}, {header: header, want: again}}}
}

// withStatus is twice, of a status.
func withStatus(status int, again outcome, header ...string) story {
	return story{fmt.Sprint(status, " ", header), []step{
		{status: status, header: header, want: origin}, {status: status, header: header, want: again, wantStatus: status},
	}}
}

func at(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
