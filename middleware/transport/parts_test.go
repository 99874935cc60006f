package transport_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware/transport"
)

const digits = "0123456789"

// serving serves ranges of a content with an ETag.
func serving(content, etag string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", etag)
		w.Header().Set("Cache-Control", "max-age=60")
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(content))
	}
}

func wantPart(t *testing.T, a answered, body, contentRange string) {
	t.Helper()
	wantAnswer(t, a, 206, body)
	if got := a.Header.Get("Content-Range"); got != contentRange {
		t.Errorf("Content-Range is %q, want %q", got, contentRange)
	}
	if a.ContentLength != int64(len(body)) {
		t.Errorf("the Content-Length is %d", a.ContentLength)
	}
}

func TestStoredPartAnswersRangesWithinIt(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, serving(digits, `"1"`))
		a, b := newTransport(t, open()), newTransport(t, open())
		url, first := askStored(t, a, v, "GET", "Range", "bytes=2-7")
		wantPart(t, first, "234567", "bytes 2-7/10")
		wantCacheStatus(t, first, "fwd=partial")
		for asked, want := range map[string]string{"bytes=2-7": "234567", "bytes=3-4": "34", "BYTES=7-7": "7"} {
			got := ask(t, b, url, "Range", asked)
			wantPart(t, got, want, "bytes "+asked[6:]+"/10")
			wantCacheStatus(t, got, "hit")
			if got.Header.Get("Age") == "" || got.Header.Get("Etag") != `"1"` {
				t.Errorf("header %v", got.Header)
			}
		}
		wantPart(t, ask(t, b, url, "Range", "bytes=3-4", "If-Range", `"1"`), "34", "bytes 3-4/10")
		v.wantCalls(t, 1)
		wantPart(t, ask(t, b, url, "Range", "bytes=-2"), "89", "bytes 8-9/10") // beyond the part
		wantAnswer(t, ask(t, b, url, "Range", "bytes=20-"), 416, "invalid range: failed to overlap\n")
		v.wantCalls(t, 3)
		wantPart(t, ask(t, b, url, "Range", "bytes=8-", "Cache-Control", "max-age=0"), "89", "bytes 8-9/10")
		v.wantCalls(t, 4)
		wantAnswer(t, ask(t, b, url, "Range", "bytes=0-1", "Cache-Control", "only-if-cached"), 504, "")
		wantPart(t, ask(t, b, url, "Range", "bytes=8-", "Cache-Control", "only-if-cached"), "89", "bytes 8-9/10")
		wantAnswer(t, ask(t, b, url, "Range", "bytes=3-4", "If-Range", `"0"`), 200, digits)
		v.wantCalls(t, 5)
		wantAnswer(t, ask(t, a, url), 200, digits) // the answer to If-Range was stored
		v.wantCalls(t, 5)
	})
}

func TestPartsThatTouchBecomeTheWhole(t *testing.T) {
	for name, order := range map[string][]string{
		"upwards":     {"bytes=0-3", "bytes=4-6", "bytes=7-"},
		"downwards":   {"bytes=-3", "bytes=4-6", "bytes=0-3"},
		"overlapping": {"bytes=3-6", "bytes=0-4", "bytes=5-9"},
		"around":      {"bytes=4-5", "bytes=0-9"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVendor(t, serving(digits, `"1"`))
			a := newTransport(t, memoryFleet(t)())
			for _, r := range order {
				ask(t, a, v.URL, "Range", r)
			}
			wantPart(t, ask(t, a, v.URL, "Range", "bytes=1-8"), "12345678", "bytes 1-8/10")
			wantAnswer(t, ask(t, a, v.URL, "If-None-Match", `"1"`), 304, "")
			wantAnswer(t, ask(t, a, v.URL), 200, digits)
			wantAnswer(t, askWith(t, a, "HEAD", v.URL), 200, "")
			v.wantCalls(t, int64(len(order)))
		})
	}
}

func TestPartsWithAGapAreNotCombined(t *testing.T) {
	v := newVendor(t, serving(digits, `"1"`))
	a := newTransport(t, memoryFleet(t)())
	ask(t, a, v.URL, "Range", "bytes=0-2")
	ask(t, a, v.URL, "Range", "bytes=6-8")
	wantPart(t, ask(t, a, v.URL, "Range", "bytes=7-8"), "78", "bytes 7-8/10")
	v.wantCalls(t, 2)
	wantPart(t, ask(t, a, v.URL, "Range", "bytes=2-7"), "234567", "bytes 2-7/10")
	v.wantCalls(t, 3)
}

// Parts of two versions never meet in one response.
func TestPartsOfAnotherETagAreNotCombined(t *testing.T) {
	var second atomic.Bool
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		if second.Load() {
			serving("abcdefghij", `"2"`)(w, r)
			return
		}
		serving(digits, `"1"`)(w, r)
	})
	a := newTransport(t, memoryFleet(t)())
	ask(t, a, v.URL, "Range", "bytes=0-4")
	second.Store(true)
	wantPart(t, ask(t, a, v.URL, "Range", "bytes=5-9"), "fghij", "bytes 5-9/10")
	wantPart(t, ask(t, a, v.URL, "Range", "bytes=0-5"), "abcdef", "bytes 0-5/10")
	wantAnswer(t, ask(t, a, v.URL), 200, "abcdefghij")
}

func TestHeadOfAnotherETagDeletesThePart(t *testing.T) {
	var changed atomic.Bool
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		serving(digits, map[bool]string{false: `"1"`, true: `"2"`}[changed.Load()])(w, r)
	})
	a := newTransport(t, memoryFleet(t)())
	for _, calls := range []int64{2, 4} { // the part is there, and then it is not
		ask(t, a, v.URL+fmt.Sprint("?", calls), "Range", "bytes=0-3")
		askWith(t, a, "HEAD", v.URL+fmt.Sprint("?", calls))
		v.wantCalls(t, calls)
	}
	ask(t, a, v.URL+"?2", "Range", "bytes=0-3")
	v.wantCalls(t, 4)
	changed.Store(true)
	ask(t, a, v.URL+"?x", "Range", "bytes=0-3")
	changed.Store(false)
	askWith(t, a, "HEAD", v.URL+"?x")
	ask(t, a, v.URL+"?x", "Range", "bytes=0-3")
	v.wantCalls(t, 7)
}

// The stored whole is newer or older than the part: they do not answer one client in turn.
func TestPartGivesWayToAnotherWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := http.Header{"Etag": {`"2"`}, "Cache-Control": {"max-age=1"}}
		part := http.Header{"Etag": {`"1"`}, "Cache-Control": {"max-age=60"}, "Content-Range": {"bytes 0-3/10"}}
		calls := 0
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			calls++
			if req.Header.Get("Range") != "" {
				return &http.Response{StatusCode: 206, Header: part.Clone(), Body: io.NopCloser(strings.NewReader("0123")), ContentLength: 4}, nil
			}
			return &http.Response{StatusCode: 200, Header: whole.Clone(), Body: io.NopCloser(strings.NewReader("abcdefghij")), ContentLength: 10}, nil
		})
		open, o := memoryFleet(t), func(o *transport.Options) { o.Base = base }
		a, b := newTransport(t, open(), o), newTransport(t, open(), o)
		const url = "http://api.example/"
		ask(t, a, url, "Range", "bytes=0-3")
		ask(t, a, url, "Range", "bytes=0-3")
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
		ask(t, b, url) // this process was asked for no part, and does not look for one
		time.Sleep(2 * time.Second)
		wantAnswer(t, ask(t, a, url, "Range", "bytes=0-3"), 206, "0123")
		if calls != 3 {
			t.Errorf("%d calls: the part of another version was served", calls)
		}
		time.Sleep(time.Minute) // the part is stale by now
		ask(t, a, url, "Range", "bytes=0-3")
		if calls != 4 {
			t.Errorf("%d calls", calls)
		}
	})
}

func TestOnlySafePartsAreStored(t *testing.T) {
	part := func(etag, cc string, more ...string) http.HandlerFunc {
		return serving(digits, etag, append([]string{"Cache-Control", cc}, more...)...)
	}
	said := func(contentRange, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Etag", `"1"`)
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Range", contentRange)
			w.WriteHeader(206)
			fmt.Fprint(w, body)
		}
	}
	for name, c := range map[string]struct {
		h   http.HandlerFunc
		ask []string
		o   func(*transport.Options)
	}{
		"a weak ETag":        {h: part(`W/"1"`, "max-age=60")},
		"an invalid ETag":    {h: part(`1`, "max-age=60")},
		"no lifetime":        {h: part(`"1"`, "")},
		"no-cache":           {h: part(`"1"`, "no-cache, max-age=60")},
		"no-store":           {h: part(`"1"`, "no-store, max-age=60")},
		"private":            {h: part(`"1"`, "private, max-age=60")},
		"stale":              {h: part(`"1"`, "max-age=60", "Age", "61")},
		"Vary: *":            {h: part(`"1"`, "max-age=60", "Vary", "*")},
		"no total":           {h: said("bytes 0-3/*", "0123")},
		"beyond its total":   {h: said("bytes 0-3/3", "0123")},
		"another unit":       {h: said("lines 0-3/10", "0123")},
		"another length":     {h: said("bytes 0-3/10", "012345")},
		"several ranges":     {h: part(`"1"`, "max-age=60"), ask: []string{"Range", "bytes=0-1,3-3"}},
		"too long":           {h: part(`"1"`, "max-age=60"), o: func(o *transport.Options) { o.MaxBody = 3 }},
		"a request no-store": {h: part(`"1"`, "max-age=60"), ask: []string{"Range", "bytes=0-3", "Cache-Control", "no-store"}},
		"a shared cache":     {h: part(`"1"`, "max-age=60"), ask: []string{"Range", "bytes=0-3", "Authorization", "a"}, o: func(o *transport.Options) { o.Shared = true }},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVendor(t, c.h)
			if c.o == nil {
				c.o = func(*transport.Options) {}
			}
			a := newTransport(t, memoryFleet(t)(), c.o)
			if c.ask == nil {
				c.ask = []string{"Range", "bytes=0-3"}
			}
			for range 2 {
				if got := ask(t, a, v.URL, c.ask...); strings.Contains(got.cacheStatus(), "stored") {
					t.Errorf("Cache-Status %s", got.cacheStatus())
				}
			}
			v.wantCalls(t, 2)
		})
	}
}

func TestPartsStayWithTheirCredentials(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		serving("content of "+r.Header.Get("Authorization"), `"1"`, "Cache-Control", "private, max-age=60")(w, r)
	})
	a := newTransport(t, memoryFleet(t)())
	for range 2 {
		for _, user := range []string{"alice", "bobby"} {
			wantAnswer(t, ask(t, a, v.URL, "Range", "bytes=8-", "Authorization", user), 206, "of "+user)
		}
	}
	v.wantCalls(t, 2)
}

func TestUnsafeMethodsAndPurgesDeleteParts(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, serving(digits, `"1"`))
		a, b := newTransport(t, open()), newTransport(t, open())
		url, _ := askStored(t, a, v, "GET", "Range", "bytes=0-3")
		askWith(t, b, "POST", url)
		ask(t, a, url, "Range", "bytes=0-3")
		v.wantCalls(t, 3)
		purge(t, b, url)
		ask(t, a, url, "Range", "bytes=0-3")
		v.wantCalls(t, 4)
	})
}

// A write or a purge while a part is on its way keeps the part, and the whole that it
// completes, out of the store.
func TestDeleteDuringAPartWins(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		for _, r := range []string{"bytes=0-3", "bytes=0-9"} {
			v := newVendor(t, serving(digits, `"1"`))
			a, b := newTransport(t, open()), newTransport(t, open())
			req, _ := http.NewRequest("GET", v.URL, nil)
			req.Header.Set("Range", r)
			resp, err := a.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Purge(req); err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			ask(t, a, v.URL, "Range", r)
			v.wantCalls(t, 2)
		}
	})
}

func TestBrokenPartIsNotStored(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"1"`)
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Range", "bytes 0-3/10")
		w.Header().Set("Content-Length", "4")
		w.WriteHeader(206)
		fmt.Fprint(w, "01")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	a := newTransport(t, memoryFleet(t)())
	for range 2 {
		if got := ask(t, a, v.URL, "Range", "bytes=0-3"); got.err == nil {
			t.Error("the part is whole")
		}
	}
	v.wantCalls(t, 2)
}

func TestPartsSideBySideDoNotWait(t *testing.T) {
	both := make(chan struct{}, 2)
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		both <- struct{}{}
		for len(both) < 2 { // the other one is here, too
			time.Sleep(time.Millisecond)
		}
		serving(digits, `"1"`)(w, r)
	})
	a := newTransport(t, memoryFleet(t)())
	done := make(chan answered)
	go func() { done <- ask(t, a, v.URL, "Range", "bytes=0-4") }()
	wantAnswer(t, ask(t, a, v.URL, "Range", "bytes=5-9"), 206, "56789")
	wantAnswer(t, <-done, 206, "01234")
}

func TestPartsOfALargeContentKeepTheirBytes(t *testing.T) {
	content := make([]byte, 300_000)
	for i := range content {
		content[i] = byte(i * i >> 7)
	}
	v := newVendor(t, serving(string(content), `"1"`))
	a := newTransport(t, memoryFleet(t)())
	for at := 0; at < len(content); at += 70_001 {
		ask(t, a, v.URL, "Range", fmt.Sprintf("bytes=%d-%d", at, at+70_000))
	}
	calls := v.calls.Load()
	if got := ask(t, a, v.URL); !bytes.Equal([]byte(got.body), content) {
		t.Errorf("%d bytes", len(got.body))
	}
	v.wantCalls(t, calls)
}

// A response that is too long to be stored holds no memory while its client reads the rest.
func TestResponseThatIsTooLongIsNotHeld(t *testing.T) {
	const most = 16 << 20
	for _, method := range []string{"GET", "POST"} {
		body, w := io.Pipe()
		go func() {
			_, _ = w.Write(make([]byte, most+1))
		}()
		base := roundTripper(func(*http.Request) (*http.Response, error) {
			h := http.Header{"Etag": {`"1"`}, "Cache-Control": {"public, max-age=60"}, "Content-Location": {"/"}}
			return &http.Response{StatusCode: 200, Header: h, Body: body, ContentLength: -1}, nil
		})
		a := newTransport(t, memoryFleet(t)(), storePost, func(o *transport.Options) { o.Base, o.MaxBody = base, most })
		req, _ := http.NewRequest(method, at, nil)
		req.Header.Set("Range", "bytes=0-")
		resp, err := a.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, resp.Body, most+1); err != nil {
			t.Error(err)
		}
		reading := int64(heap())
		resp.Body.Close()
		resp = nil
		if held := reading - int64(heap()); held > most/2 {
			t.Errorf("%s: %d bytes are held", method, held)
		}
	}
}
