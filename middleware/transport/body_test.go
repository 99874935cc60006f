package transport_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware/transport"
)

func get(t testing.TB, ctx context.Context, rt http.RoundTripper, url string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rt.RoundTrip(req)
}

func TestStreamsToTheClientOfTheCall(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		for _, control := range []string{"max-age=60", "no-store"} {
			for _, vary := range []string{"Accept", ""} {
				more := make(chan struct{})
				v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", control)
					if vary != "" {
						w.Header().Set("Vary", vary)
					}
					fmt.Fprint(w, "first ")
					_ = http.NewResponseController(w).Flush()
					<-more
					fmt.Fprint(w, "second")
				})
				a := newTransport(t, open())
				resp, err := get(t, context.Background(), a, v.URL)
				if err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 6)
				if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != "first " {
					t.Fatalf("read %q, %v before the end was sent", buf, err)
				}
				close(more)
				rest, err := io.ReadAll(resp.Body)
				if string(rest) != "second" || err != nil {
					t.Errorf("the rest is %q, %v", rest, err)
				}
				_ = resp.Body.Close()
				if _, err := resp.Body.Read(buf); err == nil {
					t.Error("a closed body can be read")
				}
			}
		}
	})
}

func TestStoresTheWholeThoughItsReaderLeaves(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		body := strings.Repeat("0123456789", 20_000)
		for _, leave := range []string{"close", "cancel"} {
			more := make(chan struct{})
			v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				fmt.Fprint(w, body[:100_000])
				_ = http.NewResponseController(w).Flush()
				<-more
				fmt.Fprint(w, body[100_000:])
			})
			a, b := newTransport(t, open()), newTransport(t, open())
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			resp, err := get(t, ctx, a, v.URL)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			waiters := make(chan answered, 10)
			for i := range 10 {
				go func() { waiters <- ask(t, []*transport.Transport{a, b}[i%2], v.URL) }()
			}
			if leave == "close" {
				_ = resp.Body.Close()
			} else {
				cancel()
				if _, err := io.ReadAll(resp.Body); err == nil {
					t.Error("the body of a cancelled request can be read to its end")
				}
				_ = resp.Body.Close()
			}
			close(more)
			for range 10 {
				wantAnswer(t, <-waiters, 200, body)
			}
			wantAnswer(t, ask(t, b, v.URL), 200, body)
			v.wantCalls(t, 1)
		}
	})
}

func TestStoresNoPartOfABody(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			if r.URL.Path == "/length" {
				w.Header().Set("Content-Length", "1000")
			}
			fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
		a := newTransport(t, open())
		for _, path := range []string{"/length", "/chunked"} {
			for range 3 {
				resp, err := get(t, context.Background(), a, v.URL+path)
				if err != nil {
					continue // a waiter's: told of the failure
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err == nil || string(body) != "half" {
					t.Errorf("a broken body is %q, %v", body, err)
				}
			}
			wantAnswer(t, ask(t, a, v.URL+path, "Cache-Control", "only-if-cached"), 504, "")
		}
	})
}

// A base transport that doesn't check lengths itself.
type shortBase struct{}

func (shortBase) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Cache-Control": {"max-age=60"}}, ContentLength: 1000,
		Body: io.NopCloser(strings.NewReader("half")), Request: req,
	}, nil
}

func TestDoesNotTrustItsBaseWithLengths(t *testing.T) {
	a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Base = shortBase{} })
	resp, err := get(t, context.Background(), a, "http://example.com/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the error is %v", err)
	}
	wantAnswer(t, ask(t, a, "http://example.com/", "Cache-Control", "only-if-cached"), 504, "")
}

// The response to a HEAD has no body, of any length. This also holds if the base
// sets no Request on its response.
func TestKnowsAHeadByItsOwnRequest(t *testing.T) {
	a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
		o.Base = roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: 200, Header: http.Header{"Cache-Control": {"max-age=60"}, "Content-Length": {"100"}},
				ContentLength: 100, Body: http.NoBody,
			}, nil
		})
	})
	for range 2 {
		r := askWith(t, a, http.MethodHead, "http://example.com/")
		wantAnswer(t, r, 200, "")
		if r.ContentLength != 100 {
			t.Errorf("the length is %d", r.ContentLength)
		}
	}
}

// An http.Client puts up with a response that has no Body, unless it says that there is
// something in it; and so with a base that returns one.
func TestBaseMayReturnNoBody(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
		for _, status := range []int{204, 404, 503} {
			for control, length := range map[string]int64{"max-age=60": 0, "no-store": 0, "max-age=61": 10} {
				tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
					o.Base = roundTripper(func(*http.Request) (*http.Response, error) {
						return &http.Response{StatusCode: status, Header: http.Header{"Cache-Control": {control}}, ContentLength: length}, nil
					})
				})
				if length > 0 && method != http.MethodHead {
					if err := failing(t, tr, method, "http://example.com/"); err == nil {
						t.Errorf("%s, %d: %d bytes of nothing are no error", method, status, length)
					}
					continue
				}
				wantAnswer(t, askWith(t, tr, method, "http://example.com/"), status, "")
			}
		}
	}
	tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
		o.Base = roundTripper(func(*http.Request) (*http.Response, error) { return nil, nil })
	})
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if err := failing(t, tr, method, "http://example.com/"); err == nil {
			t.Errorf("%s: nothing at all is no error", method)
		}
	}
}

func TestStreamsLongBodies(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		big := make([]byte, 300_000)
		rand.Read(big)
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			if r.URL.Path == "/length" {
				w.Header().Set("Content-Length", strconv.Itoa(len(big)))
			}
			_, _ = w.Write(big)
		})
		rts := make([]*transport.Transport, 2)
		for i := range rts {
			rts[i] = newTransport(t, open(), func(o *transport.Options) { o.MaxBody = 100_000 })
		}
		for _, path := range []string{"/length", "/chunked"} {
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() { wantAnswer(t, ask(t, rts[i%2], v.URL+path), 200, string(big)) })
			}
			wg.Wait()
			wantAnswer(t, ask(t, rts[0], v.URL+path, "Cache-Control", "only-if-cached"), 504, "")
		}
	})
}

func TestLetsPrivateRequestsRunSideBySide(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		const n = 8
		var mu sync.Mutex
		inside := 0
		all := make(chan struct{})
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			_ = http.NewResponseController(w).Flush() // from here on no request waits for it
			mu.Lock()
			if inside++; inside == n {
				close(all)
			}
			mu.Unlock()
			select {
			case <-all:
			case <-time.After(20 * time.Second):
				t.Error("the requests wait for one another")
			}
			fmt.Fprint(w, "hello")
		})
		rts := []*transport.Transport{newTransport(t, open()), newTransport(t, open())}
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { wantAnswer(t, ask(t, rts[i%2], v.URL), 200, "hello") })
		}
		wg.Wait()
		v.wantCalls(t, n)
	})
}

func TestBypassEndsWithAStorableResponse(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		control := "no-store"
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", control)
			fmt.Fprint(w, "hello")
		})
		a := newTransport(t, open())
		for range 3 {
			wantAnswer(t, ask(t, a, v.URL), 200, "hello")
		}
		v.wantCalls(t, 3)
		control = "max-age=60"
		waitUntil(t, func() bool {
			r := ask(t, a, v.URL)
			wantAnswer(t, r, 200, "hello")
			return strings.Contains(r.cacheStatus(), ";hit;")
		})
	})
}

func TestPassesTrailersOn(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Trailer", "X-Sum")
			fmt.Fprint(w, "hello")
			w.Header().Set("X-Sum", "5")
			w.Header().Set(http.TrailerPrefix+"X-More", "6")
		})
		a := newTransport(t, open())
		for range 2 {
			r := ask(t, a, v.URL)
			wantAnswer(t, r, 200, "hello")
			if r.Trailer.Get("X-Sum") != "5" || r.Trailer.Get("X-More") != "6" {
				t.Errorf("the trailers are %v; %s", r.Trailer, r.cacheStatus())
			}
			waitStored(t, a, v.URL)
		}
		v.wantCalls(t, 1)
	})
}

func TestReturnsWhenItsRequestEnds(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		started, release := make(chan struct{}, 10), make(chan struct{})
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			started <- struct{}{}
			<-release
			cacheable("hello")(w, r)
		})
		a, b := newTransport(t, open()), newTransport(t, open())
		ctx, cancel := context.WithCancelCause(context.Background())
		ended := errors.New("enough")
		got := make(chan error, 1)
		go func() {
			resp, err := get(t, ctx, a, v.URL)
			if err == nil {
				_ = resp.Body.Close()
			}
			got <- err
		}()
		<-started
		cancel(ended)
		if err := <-got; !errors.Is(err, ended) {
			t.Errorf("the error is %v, want the cause of the context's end", err)
		}
		close(release)
		wantAnswer(t, ask(t, b, v.URL), 200, "hello") // the call goes on for others
		v.wantCalls(t, 1)
	})
}

func TestEndsItsCallsWhenClosed(t *testing.T) {
	started := make(chan struct{}, 10)
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		started <- struct{}{}
		<-r.Context().Done()
	})
	a := newTransport(t, memoryFleet(t)())
	got := make(chan error, 1)
	go func() {
		resp, err := get(t, context.Background(), a, v.URL)
		if err == nil {
			_ = resp.Body.Close()
		}
		got <- err
	}()
	<-started
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, guard.ErrClosed) {
		t.Errorf("the error is %v, want ErrClosed", err)
	}
	if err := failing(t, a, http.MethodGet, v.URL); !errors.Is(err, guard.ErrClosed) {
		t.Errorf("after Close the error is %v", err)
	}
}

func TestReadsOnBeyondFetchTimeout(t *testing.T) {
	more := make(chan struct{})
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, "first ")
		_ = http.NewResponseController(w).Flush()
		<-more
		fmt.Fprint(w, "second")
	})
	a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.FetchTimeout = 50 * time.Millisecond })
	resp, err := get(t, context.Background(), a, v.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for range 2 { // a request that waits for it calls by itself then, and so does the next
		other, err := get(t, context.Background(), a, v.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Body.Close()
	}
	v.wantCalls(t, 3)
	close(more)
	body, err := io.ReadAll(resp.Body)
	if string(body) != "first second" || err != nil {
		t.Errorf("read %q, %v", body, err)
	}
}
