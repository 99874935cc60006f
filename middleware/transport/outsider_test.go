package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// A caller that makes a thousand requests at once, and leaves, closes, reads half or never
// closes, as it comes.
func TestSurvivesCarelessCallers(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		big := strings.Repeat("0123456789abcdef", 8<<10) // 128 KiB
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", r.URL.Query().Get("cc"))
			w.Header().Set("X-Path", r.URL.Path)
			fmt.Fprint(w, r.URL.Path, big)
		})
		tr := newTransport(t, open())
		before := runtime.NumGoroutine()
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				defer cancel()
				cc := []string{"max-age=60", "no-store", "no-cache", "private"}[i%4]
				path := fmt.Sprint("/", i%20)
				req, _ := http.NewRequestWithContext(ctx, "GET", v.URL+path+"?cc="+cc, nil)
				resp, err := tr.RoundTrip(req)
				if err != nil {
					t.Errorf("%d: %v", i, err)
					return
				}
				if got := resp.Header.Get("X-Path"); got != path {
					t.Errorf("%s: got the header of %s", path, got)
				}
				switch i % 5 {
				case 0: // leaves without a word
				case 1:
					_, _ = io.CopyN(io.Discard, resp.Body, 1000)
					resp.Body.Close()
				case 2:
					_, _ = io.CopyN(io.Discard, resp.Body, 1000)
					cancel()
				default:
					b, err := io.ReadAll(resp.Body)
					if err != nil || string(b) != path+big {
						t.Errorf("%s: %d bytes, %v", path, len(b), err)
					}
					resp.Body.Close()
					resp.Body.Close()
				}
			})
		}
		wg.Wait()
		for i := range 20 {
			for _, cc := range []string{"max-age=60", "no-store", "no-cache", "private"} {
				path := fmt.Sprint("/", i)
				if a := ask(t, tr, v.URL+path+"?cc="+cc); a.err != nil || a.body != path+big {
					t.Errorf("%s: %d bytes, %v, %s", path, len(a.body), a.err, a.cacheStatus())
				}
			}
		}
		tr.CloseIdleConnections()
		for start := time.Now(); runtime.NumGoroutine() > before+100; time.Sleep(10 * time.Millisecond) {
			if tr.CloseIdleConnections(); time.Since(start) > 20*time.Second {
				t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
			}
		}
	})
}

func TestDoesNotRepeatOtherRequests(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) })
	tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
		o.Retry = transport.Retry{Max: 3, Base: time.Millisecond}
	})
	for _, method := range []string{"POST", "PATCH", "PUT"} {
		calls := v.calls.Load()
		req, _ := http.NewRequest(method, v.URL, io.NopCloser(strings.NewReader("once")))
		resp, err := tr.RoundTrip(req)
		if err != nil || resp.StatusCode != 503 {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
		v.wantCalls(t, calls+1)
	}
	calls := v.calls.Load()
	resp, err := (&http.Client{Transport: tr}).Post(v.URL, "text/plain", strings.NewReader("again?"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	v.wantCalls(t, calls+1)
}

// A client's redirects, cookies and credentials are its own.
func TestUnderAClient(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		switch r.URL.Path {
		case "/login":
			http.SetCookie(w, &http.Cookie{Name: "session", Value: r.URL.Query().Get("as"), Path: "/"})
			http.Redirect(w, r, "/me", http.StatusFound)
		default:
			c, _ := r.Cookie("session")
			fmt.Fprint(w, "hello ", c)
		}
	})
	tr := newTransport(t, memoryFleet(t)())
	for round := range 2 {
		for _, who := range []string{"ann", "bob"} {
			jar, _ := cookiejar.New(nil)
			c := &http.Client{Transport: tr, Jar: jar}
			for _, path := range []string{"/login?as=" + who, "/me"} {
				resp, err := c.Get(v.URL + path)
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				// A stored response sets no cookie the second time.
				if got := string(b); got != "hello session="+who && (round == 0 || got != "hello ") {
					t.Errorf("%s at %s: %q, %v", who, path, got, resp.Header)
				}
			}
		}
	}
}

func TestBelievesNoHostileRetryAfter(t *testing.T) {
	for _, value := range []string{
		"99999999999999999999", "-1", "1e9", "NaN", "0x10", "", "Fri, 31 Dec 9999 23:59:59 GMT", "9223372036854775807", "1, 2", strings.Repeat("9", 5000),
	} {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", value)
			w.Header().Set("X-RateLimit-Reset", value)
			w.Header().Set("X-RateLimit-Remaining", value)
			w.WriteHeader(429)
			fmt.Fprint(w, "no")
		})
		tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
			o.MaxPause = 50 * time.Millisecond
			o.Retry = transport.Retry{Max: 1, Base: time.Millisecond, MaxElapsed: 20 * time.Millisecond}
		})
		start := time.Now()
		if a := ask(t, tr, v.URL); a.StatusCode != 429 {
			t.Errorf("%.20q: %d", value, a.StatusCode)
		}
		calls := v.calls.Load()
		for v.calls.Load() == calls {
			if ask(t, tr, v.URL); time.Since(start) > 10*time.Second {
				t.Fatalf("%.20q: not asked again", value)
			}
		}
	}
}

func TestSaysThatItIsClosed(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {})
	tr := newTransport(t, memoryFleet(t)())
	_ = tr.Close()
	resp, err := (&http.Client{Transport: tr}).Get(v.URL)
	if err == nil {
		resp.Body.Close()
	}
	if !errors.Is(err, guard.ErrClosed) {
		t.Error(err)
	}
}
