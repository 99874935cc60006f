package middleware_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware"
)

// bounds asks for the bounds themselves, on a quiet machine, as in package guard.
var bounds = os.Getenv("STAMPEDE_BOUNDS") == "1"

// hangs is when a test stops to wait and fails.
const hangs = 30 * time.Second

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/stampedeguard/stampede/internal/harness/redistest.init.func1.1"))
}

// A site is a server with the middleware in front of a handler.
type site struct {
	*testing.T
	*httptest.Server
	m      *middleware.Middleware
	runs   atomic.Int32 // of the handler
	client *http.Client
	mu     sync.Mutex
	events []middleware.Event
}

func newStore(t *testing.T) *cache.Memory {
	t.Helper()
	s, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// open starts a site on a store of its own.
func open(t *testing.T, o middleware.Options, h http.HandlerFunc) *site {
	t.Helper()
	return openOn(t, newStore(t), o, h)
}

func openOn(t *testing.T, store cache.Store, o middleware.Options, h http.HandlerFunc) *site {
	t.Helper()
	return openAt(t, store, nil, o, h)
}

// openInBubble starts a site in a bubble, with connections in memory.
func openInBubble(t *testing.T, o middleware.Options, h http.HandlerFunc) *site {
	t.Helper()
	return openInBubbleOn(t, newStore(t), o, h)
}

func openInBubbleOn(t *testing.T, store cache.Store, o middleware.Options, h http.HandlerFunc) *site {
	t.Helper()
	t.Cleanup(func() { time.Sleep(time.Minute) }) // handlers return
	return openAt(t, store, &pipes{conns: make(chan net.Conn), over: make(chan struct{})}, o, h)
}

func openAt(t *testing.T, store cache.Store, at *pipes, o middleware.Options, h http.HandlerFunc) *site {
	t.Helper()
	s := &site{T: t}
	o.Observe = func(e middleware.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, e)
	}
	var err error
	if s.m, err = middleware.New(store, o); err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewUnstartedServer(s.m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		h(w, r)
	})))
	s.Config.ErrorLog = quietLog
	if at != nil {
		_ = s.Listener.Close()
		s.Listener = at
	}
	s.Start()
	s.client = s.Client()
	if at != nil {
		s.client.Transport.(*http.Transport).DialContext = at.dial
	}
	s.client.Transport.(*http.Transport).DisableCompression = true
	s.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 2000
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		_ = s.m.Close()
		s.Close()
	})
	return s
}

// pipes is a listener with connections in memory.
type pipes struct {
	conns chan net.Conn
	over  chan struct{}
	once  sync.Once
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.over:
	case <-ctx.Done():
	}
	return nil, net.ErrClosed
}

// Accept implements [net.Listener].
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (p *pipes) Close() error {
	p.once.Do(func() { close(p.over) })
	return nil
}

// Addr implements [net.Listener].
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// A got is a response, read to its end.
type got struct {
	*http.Response
	body string
	err  error // reading it, or having it at all
}

// status is the response's member of Cache-Status.
func (g got) status() string {
	if g.Response == nil {
		return "none: " + g.err.Error()
	}
	return strings.Join(g.Header["Cache-Status"], ", ")
}

// do sends a request: "METHOD /path" or "/path", and headers "Name: value".
func (s *site) do(what string, headers ...string) got {
	return s.doCtx(context.Background(), what, headers...)
}

func (s *site) doCtx(ctx context.Context, what string, headers ...string) got {
	s.Helper()
	method, path, ok := strings.Cut(what, " ")
	if !ok {
		method, path = "GET", what
	}
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Add(name, value)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return got{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return got{resp, string(body), err}
}

// raw sends a request line by line as it is, and Connection: close.
func (s *site) raw(lines ...string) got {
	s.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\nConnection: close\r\n\r\n"); err != nil {
		s.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return got{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return got{resp, string(body), err}
}

// ran fails the test unless the handler ran so many times.
func (s *site) ran(want int) {
	s.Helper()
	if n := int(s.runs.Load()); n != want {
		s.Errorf("the handler ran %d times, want %d", n, want)
	}
}

// stored waits until the page is stored with that body: a client has the last of
// it a moment before.
func (s *site) stored(path, body string) {
	s.Helper()
	for start := time.Now(); ; {
		g := s.do(path, "Cache-Control: only-if-cached")
		if g.body == body {
			return
		}
		if time.Since(start) > 10*time.Second {
			s.Fatalf("%s is %q, want %q", path, g.body, body)
		}
	}
}

// is fails the test unless the response has the status, and the body where one is
// given.
func (s *site) is(g got, status int, body string) {
	s.Helper()
	if g.err != nil || g.StatusCode != status || body != "*" && g.body != body {
		code := 0
		if g.Response != nil {
			code = g.StatusCode
		}
		s.Errorf("%d %q (%v), want %d %q; %s", code, g.body, g.err, status, body, g.status())
	}
}

// hit fails the test unless the response came from an entry, or from a run that is
// about to store one: the client that started that run needn't wait for the store.
func (s *site) hit(g got) {
	s.Helper()
	if !strings.Contains(g.status(), ";hit") && !strings.Contains(g.status(), ";stored;collapsed") {
		s.Errorf("no hit: %s", g.status())
	}
}

// together sends n requests at once.
func (s *site) together(n int, what string, headers ...string) []got {
	all := make([]got, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { all[i] = s.do(what, headers...) })
	}
	wg.Wait()
	return all
}

// eventually waits for something that is about to be so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(hangs); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, hangs)
		}
	}
}

// number answers with how many runs there have been.
func number() http.HandlerFunc {
	var n atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "run %d", n.Add(1)) }
}

// saying sets headers "Name: value" before the next handler.
func saying(h http.HandlerFunc, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, line := range headers {
			name, value, _ := strings.Cut(line, ": ")
			w.Header().Add(name, value)
		}
		h(w, r)
	}
}
