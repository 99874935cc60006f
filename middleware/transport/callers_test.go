package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// A Key that leaves out noise leaves out no credentials.
func TestCustomKeysKeepCredentialsOfTheURL(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=60")
		fmt.Fprint(w, "for ", r.URL.Query().Get("api_key"), r.URL.Query().Get("sig"))
	})
	tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
		o.Key = func(r *http.Request) string { return r.URL.Path }
	})
	for range 2 {
		for _, who := range []string{"ann", "bob"} {
			wantAnswer(t, ask(t, tr, v.URL+"/me?utm=1&api_key="+who), 200, "for "+who)
			wantAnswer(t, ask(t, tr, v.URL+"/me?s%69g="+who), 200, "for "+who)
		}
	}
	v.wantCalls(t, 4)
	wantCacheStatus(t, ask(t, tr, v.URL+"/me?api_key=ann&utm=2"), ";hit")
	v.wantCalls(t, 4)
}

// http.Client ends a request that took too long by closing its Cancel. The call goes
// on for other waiters.
func TestCallOutlivesItsClientsTimeout(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		release := make(chan struct{})
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			<-release
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, "hello")
		})
		rts := []*transport.Transport{newTransport(t, open()), newTransport(t, open())}
		hurried := make(chan error, 1)
		go func() {
			c := &http.Client{Transport: rts[0], Timeout: 500 * time.Millisecond}
			resp, err := c.Get(v.URL)
			if err == nil {
				resp.Body.Close()
			}
			hurried <- err
		}()
		waitUntil(t, func() bool { return v.calls.Load() == 1 })
		got := make(chan answered, 2)
		for _, rt := range rts {
			go func() { got <- ask(t, rt, v.URL) }()
		}
		if err := <-hurried; err == nil {
			t.Fatal("the client didn't time out")
		}
		close(release)
		for range rts {
			wantAnswer(t, <-got, 200, "hello")
		}
		v.wantCalls(t, 1)
	})
}

// Of a request with a Cancel of its own, the waiting and the reading end with it.
func TestHeedsCancel(t *testing.T) {
	release := make(chan struct{})
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", r.URL.RawQuery)
		fmt.Fprint(w, "hello")
		_ = http.NewResponseController(w).Flush()
		<-release
	})
	t.Cleanup(func() { close(release) })
	tr := newTransport(t, memoryFleet(t)())
	for _, control := range []string{"max-age=60", "no-store"} {
		cancel := make(chan struct{})
		req, _ := http.NewRequest("GET", v.URL+"?"+control, nil)
		req.Cancel = cancel //nolint:staticcheck // the test is about it
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, len("hello"))); err != nil {
			t.Fatal(err)
		}
		close(cancel)
		if b, err := io.ReadAll(resp.Body); err == nil || len(b) > 0 {
			t.Errorf("%s: %q, %v", control, b, err)
		}
		resp.Body.Close()
	}
}

// A request that waits ends with its Cancel, before the upstream has
// answered.
func TestHeedsCancelWhileItWaits(t *testing.T) {
	release := make(chan struct{})
	var slow atomic.Bool
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		if slow.Load() {
			<-release
		}
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", `"1"`)
	})
	open := memoryFleet(t)
	tr, other := newTransport(t, open()), newTransport(t, open())
	waitUntil(t, func() bool {
		ask(t, tr, v.URL+"/stored")
		return v.last().Header.Get("If-None-Match") != ""
	})
	slow.Store(true)
	var others sync.WaitGroup
	defer others.Wait()
	defer close(release)
	// waiting gives up a request once it waits, as another goroutine can tell.
	waiting := func(path string, waits func() bool) {
		t.Helper()
		cancel := make(chan struct{})
		req, _ := http.NewRequest("GET", v.URL+path, nil)
		req.Cancel = cancel //nolint:staticcheck // the test is about it
		ended := make(chan error, 1)
		go func() {
			resp, err := tr.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			ended <- err
		}()
		waitUntil(t, waits)
		close(cancel)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: it ended with %v", path, err)
		}
	}
	called := func() func() bool {
		before := v.calls.Load()
		return func() bool { return v.calls.Load() > before }
	}
	waiting("/stored", called()) // for its validation
	waiting("/own", called())
	ofOther := called()
	others.Go(func() { ask(t, other, v.URL+"/other") })
	waitUntil(t, ofOther)
	waiting("/other", func() bool {
		return slices.ContainsFunc(tr.Stats().InFlight, func(f guard.Flight) bool { return f.Role == "waiting" })
	})
}

// closes is a body that counts when it is closed, once.
type closes struct {
	io.Reader
	close func()
}

func (c closes) Close() error {
	c.close()
	return nil
}

// Each body that a retry takes is closed, also when there is no other attempt.
func TestClosesTheBodiesOfItsRetries(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) })
	tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
		o.Retry = transport.Retry{Max: 2, Base: time.Millisecond}
	})
	var open atomic.Int64
	body := func() (io.ReadCloser, error) {
		open.Add(1)
		return closes{strings.NewReader("again"), sync.OnceFunc(func() { open.Add(-1) })}, nil
	}
	req, _ := http.NewRequest("PUT", v.URL, nil)
	req.Body, _ = body()
	req.GetBody, req.ContentLength = body, 5
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	v.wantCalls(t, 3)
	waitUntil(t, func() bool { return open.Load() == 0 }) // the base may close it later
}

// Names of fields may be written as one likes, and mean the same.
func TestReadsNamesHoweverTheyAreWritten(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Accept-Language")
		fmt.Fprint(w, r.Header.Get("X-Caller"), r.Header.Get("Accept-Language"))
	})
	tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Credentials = []string{"X-Caller"} })
	get := func(want string, header http.Header) {
		t.Helper()
		req, _ := http.NewRequest("GET", v.URL, nil)
		req.Header = header
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if b, _ := io.ReadAll(resp.Body); string(b) != want {
			t.Errorf("%v: got %q, want %q; %s", header, b, want, resp.Header["Cache-Status"])
		}
	}
	for range 2 {
		get("ann", http.Header{"x-caller": {"ann"}})
		get("bob", http.Header{"x-caller": {"bob"}})
		get("de", http.Header{"accept-language": {"de"}})
		get("fr", http.Header{"accept-language": {"fr"}})
	}
	calls := v.calls.Load()
	get("de", http.Header{"accept-language": {"de"}, "cache-control": {"no-store"}})
	get("de", http.Header{"accept-language": {"de"}, "if-none-match": {"x"}})
	v.wantCalls(t, calls+2)
}

// slowLeases is a store that takes its time to grant one.
func slowLeases(s cache.Store) cache.Store {
	t := tap.New(s)
	t.OnAcquire = func([]store.Request) []store.Answer {
		time.Sleep(10 * time.Millisecond)
		return nil
	}
	return t
}

// A client may use its request again, for another user, once it has read the response.
// Work in the background is about the request as it was.
func TestRefreshDoesNotSeeChangesOfItsRequest(t *testing.T) {
	for _, vary := range []string{"", "Accept-Language"} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			base := roundTripper(func(r *http.Request) (*http.Response, error) {
				calls++
				h := http.Header{"Cache-Control": {"max-age=60, stale-while-revalidate=600"}}
				if calls > 1 && vary != "" {
					h.Set("Vary", vary)
				}
				page := fmt.Sprint(r.URL.Path, " of ", r.Header.Get("Authorization"), " in ", r.Header.Get("Accept-Language"), ", ", calls)
				return &http.Response{StatusCode: 200, Header: h, Body: io.NopCloser(strings.NewReader(page)), ContentLength: -1, Request: r}, nil
			})
			tr := newTransport(t, slowLeases(memoryFleet(t)()), func(o *transport.Options) { o.Base = base })
			ann := []string{"Authorization", "ann", "Accept-Language", "de"}
			wantAnswer(t, ask(t, tr, "http://vendor.test/1", ann...), 200, "/1 of ann in de, 1")
			time.Sleep(2 * time.Minute)

			req := mustRequest(t, "http://vendor.test/1")
			req.Header.Set("Authorization", "ann")
			req.Header.Set("Accept-Language", "de")
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			wantAnswer(t, answered{resp, string(body), err}, 200, "/1 of ann in de, 1")
			if resp.Request != req {
				t.Error("the response isn't the request's")
			}
			req.URL.Path, req.Method = "/2", http.MethodHead
			req.Header.Set("Authorization", "bob")
			req.Header.Set("Accept-Language", "fr")

			time.Sleep(30 * time.Second)
			a := ask(t, tr, "http://vendor.test/1", append(ann, "Cache-Control", "only-if-cached")...)
			wantAnswer(t, a, 200, "/1 of ann in de, 2")
			if vary != "" {
				a = ask(t, tr, "http://vendor.test/1", "Authorization", "ann", "Accept-Language", "fr", "Cache-Control", "only-if-cached")
				wantAnswer(t, a, 504, "")
			}
		})
	}
}
