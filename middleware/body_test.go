package middleware_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// The client that starts a run has each part as the handler flushes it; those that
// wait get nothing before it is whole.
func TestLeaderStreamsAndWaitersGetTheWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parts := make(chan string)
		s := openInBubble(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			for part := range parts {
				fmt.Fprint(w, part)
				http.NewResponseController(w).Flush()
			}
		})
		headerCame := make(chan *http.Response)
		go func() {
			resp, err := s.client.Get(s.URL) //nolint:bodyclose // by its receiver
			if err != nil {
				t.Error(err)
			}
			headerCame <- resp
		}()
		parts <- "one,"
		resp := <-headerCame
		defer resp.Body.Close()
		waiter := make(chan got)
		go func() { waiter <- s.do("/") }()
		read := func(want string) {
			t.Helper()
			b := make([]byte, len(want))
			if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != want {
				t.Fatalf("%q, %v", b, err)
			}
		}
		read("one,")
		for i := range 5 {
			part := fmt.Sprint(i, ",")
			parts <- part
			read(part)
		}
		select {
		case g := <-waiter:
			t.Fatalf("a waiter got %q of half a page", g.body)
		case <-time.After(time.Second):
		}
		close(parts)
		s.is(<-waiter, 200, "one,0,1,2,3,4,")
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
			t.Errorf("%q, %v", rest, err)
		}
		s.ran(1)
	})
}

// The first byte of a miss reaches its client within 5 ms of the handler's flush.
func TestFirstByteIsQuick(t *testing.T) {
	var flushed atomic.Int64
	s := open(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "first")
		flushed.Store(time.Now().UnixNano())
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	var worst time.Duration
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "GET", s.URL+"/"+strconv.Itoa(i), nil)
		resp, err := s.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Duration(time.Now().UnixNano()-flushed.Load()))
		cancel()
		resp.Body.Close()
	}
	t.Logf("worst of 20: %v", worst)
	if bounds && worst > 5*time.Millisecond {
		t.Errorf("%v", worst)
	}
}

// pitfall 37: no part of a broken body is stored, and no waiter takes a part for the whole.
func TestPitfall37BrokenBodiesAreNotStored(t *testing.T) {
	for name, c := range map[string]func(w http.ResponseWriter){
		"panic":                func(http.ResponseWriter) { panic("boom") },
		"abort":                func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"short":                func(http.ResponseWriter) {},
		"panic before flush":   func(http.ResponseWriter) { panic("boom") },
		"panic without header": func(http.ResponseWriter) { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int32
				started, release := make(chan struct{}), make(chan struct{})
				s := openInBubble(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
					if n.Add(1) > 1 {
						fmt.Fprint(w, "whole page")
						return
					}
					if name == "short" {
						w.Header().Set("Content-Length", "10")
					}
					if name != "panic without header" {
						fmt.Fprint(w, "half")
					}
					if name != "panic before flush" && name != "panic without header" {
						w.(http.Flusher).Flush()
					}
					close(started)
					<-release
					c(w)
				})
				leader, waiter := make(chan got), make(chan got)
				go func() { leader <- s.do("/") }()
				<-started
				go func() { waiter <- s.do("/") }()
				synctest.Wait() // it waits
				close(release)
				if g := <-leader; g.err == nil {
					t.Errorf("the client that started it got %d %q", g.StatusCode, g.body)
				}
				g := <-waiter
				broken := g.err != nil && g.body == "half" // as the leader got it
				if flushed := name != "panic before flush" && name != "panic without header"; broken != flushed || !broken && g.StatusCode < 500 {
					t.Errorf("a waiter got %+v %q, %v", g.Response, g.body, g.err)
				}
				synctest.Wait() // the run's turn is over
				s.is(s.do("/"), 200, "whole page")
			})
		})
	}
}

// pitfall 37: a client that hangs up takes nothing along: the run goes on for the
// others, and is stored.
func TestPitfall37RunOutlivesItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started, release := make(chan struct{}), make(chan struct{})
		for _, flush := range []bool{false, true} {
			started, release = make(chan struct{}), make(chan struct{})
			s := openInBubble(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, "first,")
				if flush {
					w.(http.Flusher).Flush()
				}
				close(started)
				<-release
				if r.Context().Err() != nil {
					t.Error("the run was cancelled")
				}
				fmt.Fprint(w, "last")
			})
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan got)
			go func() { left <- s.doCtx(ctx, "/") }()
			<-started
			waiter := make(chan got)
			go func() { waiter <- s.do("/") }()
			cancel()
			<-left
			synctest.Wait()
			close(release)
			s.is(<-waiter, 200, "first,last")
			s.is(s.do("/"), 200, "first,last")
			s.ran(1)
		}
	})
}

// pitfall 37: a request that an outer layer gives up gets neither an empty
// page nor half of one that looks whole.
func TestPitfall37EndOfTheRequestsContext(t *testing.T) {
	for _, deadline := range []bool{false, true} {
		for _, so := range []string{"nothing", "written", "flushed"} {
			t.Run(fmt.Sprint("deadline ", deadline, ", ", so), func(t *testing.T) {
				release := make(chan struct{})
				m, err := middleware.New(newStore(t), middleware.Options{TTL: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				inner := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if so != "nothing" {
						fmt.Fprint(w, "half,")
					}
					if so == "flushed" {
						w.(http.Flusher).Flush()
					}
					<-release
					fmt.Fprint(w, "whole")
				}))
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ctx, cancel := context.WithCancel(r.Context())
					defer cancel()
					time.AfterFunc(50*time.Millisecond, cancel)
					if deadline {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(r.Context(), 50*time.Millisecond)
						defer cancel()
					}
					inner.ServeHTTP(w, r.WithContext(ctx))
				}))
				defer server.Close()
				defer close(release)
				resp, err := server.Client().Get(server.URL)
				if err != nil {
					return
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if err == nil && (resp.StatusCode < 500 || resp.Header.Get("Cache-Control") != "no-store") {
					t.Errorf("%d %q %v", resp.StatusCode, body, resp.Header)
				}
			})
		}
	}
}

// pitfall 37: a goroutine that a handler has left running can't write into the
// entry, nor end the process.
func TestPitfall37NothingIsWrittenAfterTheHandlerReturned(t *testing.T) {
	for _, ended := range []string{"returned", "panicked"} {
		late := make(chan func())
		s := open(t, middleware.Options{TTL: time.Minute, MaxBody: 100}, func(w http.ResponseWriter, r *http.Request) {
			if ended == "returned" {
				fmt.Fprint(w, "whole")
			}
			go func() {
				late <- func() {
					w.WriteHeader(http.StatusTeapot)
					for range 3 {
						if n, err := io.WriteString(w, strings.Repeat("late", 20)); n > 0 || err == nil {
							t.Errorf("%s: %d bytes were taken, %v", ended, n, err)
						}
					}
					if err := http.NewResponseController(w).Flush(); err == nil {
						t.Errorf("%s: flushed", ended)
					}
				}
			}()
			if ended == "panicked" {
				panic(http.ErrAbortHandler)
			}
		})
		s.do("/")
		(<-late)()
		if ended == "returned" {
			s.is(s.do("/"), 200, "whole")
			s.ran(1)
		}
	}
}

// A refresh in the background has no part in the connection on which the stale page
// is being sent.
func TestRefreshDoesNotTouchTheClientsConnection(t *testing.T) {
	const size = 16 << 20 // more than the connection buffers
	var runs atomic.Int32
	sending, tried := make(chan struct{}), make(chan struct{})
	s := open(t, middleware.Options{MaxBody: size}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=0, stale-while-revalidate=60")
		switch runs.Add(1) {
		case 1:
			_, _ = w.Write(make([]byte, size))
		case 2:
			defer close(tried)
			<-sending
			control := http.NewResponseController(w)
			if err := control.SetWriteDeadline(time.Now().Add(-time.Second)); err == nil {
				t.Error("a deadline was set")
			}
			if _, _, err := control.Hijack(); err == nil {
				t.Error("it was hijacked")
			}
		}
	})
	s.do("/")
	eventually(t, "the stale page", func() bool {
		resp, err := s.client.Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if runs.Load() < 2 {
			return false
		}
		close(sending)
		<-tried
		if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		return true
	})
}

// pitfall 37: a body longer than MaxBody streams on to each client, whole.
func TestPitfall37OversizedBodiesStreamThrough(t *testing.T) {
	const max = 100 << 10
	for _, declared := range []bool{false, true} {
		for _, size := range []int{max, max + 1, 5 * max} {
			t.Run(fmt.Sprint(size, " declared ", declared), func(t *testing.T) {
				body := strings.Repeat("x", size)
				s := open(t, middleware.Options{TTL: time.Minute, MaxBody: max}, func(w http.ResponseWriter, r *http.Request) {
					if declared {
						w.Header().Set("Content-Length", strconv.Itoa(size))
					}
					for rest := body; rest != ""; {
						n := min(len(rest), 1000)
						if _, err := io.WriteString(w, rest[:n]); err != nil {
							t.Error(err)
							return
						}
						rest = rest[n:]
					}
				})
				for _, g := range s.together(10, "/") {
					s.is(g, 200, body)
				}
				s.is(s.do("/"), 200, body)
				if n := s.runs.Load(); (size <= max) != (n == 1) {
					t.Errorf("%d runs", n)
				}
			})
		}
	}
}

// A handler with a private response is held to its client's pace.
func TestPrivateRunsAreNotRecorded(t *testing.T) {
	var written atomic.Int64
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		for r.Context().Err() == nil {
			n, err := w.Write(make([]byte, 32<<10))
			if err != nil {
				return
			}
			written.Add(int64(n))
		}
	})
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	var last int64
	eventually(t, "the handler waits for its client", func() bool {
		was := last
		last = written.Load()
		time.Sleep(50 * time.Millisecond)
		return last > 0 && last == was
	})
	if last > 32<<20 {
		t.Errorf("%d bytes were taken from the handler for a client that reads none", last)
	}
	conn.Close()
	eventually(t, "the handler's end", func() bool { return s.runs.Load() == 1 && len(s.m.Stats().Guard.InFlight) == 0 })
}

func TestSlowClientDelaysNoOther(t *testing.T) {
	body := strings.Repeat("x", 900<<10)
	s := open(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		fmt.Fprint(w, body)
	})
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: "+s.Listener.Addr().String()+"\r\n\r\n") // and reads nothing
	eventually(t, "the run", func() bool { return s.runs.Load() == 1 })
	s.is(s.do("/"), 200, body)
	s.ran(1)
}

func TestTrailers(t *testing.T) {
	s := open(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprint(w, "body")
		w.Header().Set("X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"X-Late", "yes")
	})
	for range 2 {
		g := s.do("/")
		s.is(g, 200, "body")
		if g.Trailer.Get("X-Sum") != "42" || g.Trailer.Get("X-Late") != "yes" || g.Header.Get("X-Sum") != "" {
			t.Errorf("trailer %v, header %v", g.Trailer, g.Header)
		}
	}
	s.ran(1)
}

// pitfall 33: a field that must not be stored of a header isn't stored of a trailer.
func TestPitfall33TrailersOfOneClientAreNotStored(t *testing.T) {
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", `max-age=60, private="X-Name"`)
		w.Header().Set("Trailer", "Set-Cookie, X-Name, X-Sum")
		fmt.Fprint(w, "body")
		w.Header().Set("Set-Cookie", "session=alice")
		w.Header().Set("X-Name", "alice")
		w.Header().Set("X-Sum", "1")
	})
	s.do("/")
	s.stored("/", "body")
	if g := s.do("/"); g.Trailer.Get("X-Sum") != "1" || len(g.Trailer) != 1 {
		t.Errorf("trailer of a hit: %v", g.Trailer)
	}
}

func TestInformationalResponsesPassThrough(t *testing.T) {
	for _, cc := range []string{"max-age=60", "private"} {
		s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			w.Header().Set("Cache-Control", cc)
			fmt.Fprint(w, "body")
		})
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				hints = append(hints, fmt.Sprint(code, " ", h.Get("Link")))
				return nil
			},
		})
		g := s.doCtx(ctx, "/")
		s.is(g, 200, "body")
		if len(hints) != 1 || hints[0] != "103 </style.css>; rel=preload" || g.Header.Get("Link") != "" {
			t.Errorf("%v, %v", hints, g.Header)
		}
	}
}

func TestHijackPassesThrough(t *testing.T) {
	for _, header := range []string{"", "Connection: Upgrade\r\nUpgrade: echo\r\n", "Cookie: a=b\r\n"} {
		s := open(t, middleware.Options{TTL: time.Minute, Cookies: []string{}}, func(w http.ResponseWriter, r *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			rw.Flush()
			line, _ := rw.ReadString('\n')
			fmt.Fprint(rw, "you said ", line)
			rw.Flush()
		})
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n"+header+"\r\nhello\n")
		b := bufio.NewReader(conn)
		resp, err := http.ReadResponse(b, nil)
		if err != nil || resp.StatusCode != 101 {
			t.Fatal(resp, err)
		}
		defer resp.Body.Close()
		if line, _ := b.ReadString('\n'); line != "you said hello\n" {
			t.Errorf("%q", line)
		}
		s.ran(1)
	}
}

// A response without a reader is not stored: the handler's context ends, and so does
// the run.
func TestFetchTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openInBubble(t, middleware.Options{TTL: time.Minute, FetchTimeout: 50 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		})
		for _, g := range s.together(5, "/") {
			s.is(g, http.StatusGatewayTimeout, "The answer took too long. Try again.\n")
		}
	})
}

func TestSlowBodyGoesOnForItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openInBubble(t, middleware.Options{TTL: time.Minute, FetchTimeout: 50 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "first,")
			w.(http.Flusher).Flush()
			select {
			case <-time.After(200 * time.Millisecond):
				fmt.Fprint(w, "last")
			case <-r.Context().Done():
				t.Error("cancelled, though its client is there")
			}
		})
		s.is(s.do("/"), 200, "first,last")
	})
}

func TestWaitTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, action := range []middleware.WaitAction{middleware.Unavailable, middleware.RunAlone} {
			var n atomic.Int32
			release := make(chan struct{})
			s := openInBubble(t, middleware.Options{TTL: time.Minute, WaitTimeout: 50 * time.Millisecond, OnWaitTimeout: action}, func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1) == 1 {
					<-release
				}
				fmt.Fprint(w, "page")
			})
			leader := make(chan got)
			go func() { leader <- s.do("/") }()
			eventually(t, "the run", func() bool { return n.Load() == 1 })
			g := s.do("/")
			if action == middleware.RunAlone {
				s.is(g, 200, "page")
			} else {
				s.is(g, 503, "*")
				if g.Header.Get("Retry-After") == "" {
					t.Error("no Retry-After")
				}
			}
			close(release)
			s.is(<-leader, 200, "page")
		}
	})
}

// pitfall 40: no response changes the headers of a stored page.
func TestPitfall40HeadersAreNotShared(t *testing.T) {
	store := newStore(t)
	m, err := middleware.New(store, middleware.Options{TTL: time.Minute, HideCacheStatus: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Many"] = append(make([]string, 0, 8), "a", "b")
		fmt.Fprint(w, "x")
	}))
	for i := range 4 {
		w := &plainWriter{h: http.Header{}}
		r, _ := http.NewRequest("GET", "http://x/", nil)
		h.ServeHTTP(w, r)
		if got := fmt.Sprint(w.h["X-Many"]); got != "[a b]" {
			t.Fatalf("round %d: %s", i, got)
		}
		w.h["X-Many"][0] = "changed"
		w.h["X-Many"] = append(w.h["X-Many"], "more")
		w.h.Set("Date", "changed")
	}
}

type plainWriter struct {
	h http.Header
	bytes.Buffer
}

func (w *plainWriter) Header() http.Header { return w.h }
func (w *plainWriter) WriteHeader(int)     {}
