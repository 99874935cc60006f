package transport_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware/transport"
)

// inMemory is a base that calls a handler, for tests with faked time.
func inMemory(h http.Handler) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w.Result(), nil
	})
}

// A resource is content that changes, and the requests for it.
type resource struct {
	content, etag, says string
	headers             []string // more
	seen                []*http.Request
}

func (r *resource) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.seen = append(r.seen, req)
	serving(r.content, r.etag, append([]string{"Cache-Control", r.says}, r.headers...)...)(w, req)
}

// wantLast fails the test unless the resource was requested n times, with these headers in the
// last request.
func (r *resource) wantLast(t *testing.T, n int, header ...string) {
	t.Helper()
	if len(r.seen) != n {
		t.Fatalf("%d calls, want %d", len(r.seen), n)
	}
	for i := 0; i < len(header); i += 2 {
		if got := r.seen[n-1].Header.Get(header[i]); got != header[i+1] {
			t.Errorf("the upstream was asked with %s %q, want %q", header[i], got, header[i+1])
		}
	}
}

// withResource runs a test with a transport in front of a resource that changes.
func withResource(t *testing.T, test func(t *testing.T, r *resource, a *transport.Transport), change ...func(*transport.Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &resource{content: digits, etag: `"1"`, says: "max-age=60"}
		test(t, r, newTransport(t, memoryFleet(t)(), append(change, func(o *transport.Options) { o.Base = inMemory(r) })...))
	})
}

const at = "http://api.example/"

func TestWholeIsCompletedFromAPart(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		v := newVendor(t, serving(digits, `"1"`))
		a, b := newTransport(t, open()), newTransport(t, open())
		for had, rest := range map[string]string{"bytes=0-3": "bytes=4-", "bytes=6-": "bytes=0-5", "bytes=-1": "bytes=0-8", "bytes=0-8": "bytes=9-"} {
			url, _ := askStored(t, a, v, "GET", "Range", had)
			got := ask(t, a, url)
			wantAnswer(t, got, 200, digits)
			wantCacheStatus(t, got, "fwd=partial", "stored")
			if got.ContentLength != 10 || got.Header.Get("Content-Range") != "" || got.Header.Get("Content-Type") == "" {
				t.Errorf("%d bytes, header %v", got.ContentLength, got.Header)
			}
			if h := v.last().Header; h.Get("Range") != rest || h.Get("If-Range") != `"1"` {
				t.Errorf("asked with %v", h)
			}
			wantAnswer(t, ask(t, b, url), 200, digits)
			v.wantCalls(t, 2)
			purge(t, a, url)
		}
	})
}

// A part that lacks bytes on both sides would take two calls.
func TestPartFromTheMiddleIsNotCompleted(t *testing.T) {
	withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
		ask(t, a, at, "Range", "bytes=3-4")
		wantAnswer(t, ask(t, a, at), 200, digits)
		r.wantLast(t, 2, "Range", "", "If-Range", "")
	})
}

func TestStalePartIsCompleted(t *testing.T) {
	withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
		ask(t, a, at, "Range", "bytes=0-3")
		time.Sleep(2 * time.Minute)
		wantAnswer(t, ask(t, a, at), 200, digits)
		r.wantLast(t, 2, "Range", "bytes=4-")
		synctest.Wait() // it is stored
		if got := ask(t, a, at); got.Header.Get("Age") != "0" {
			t.Errorf("Age %s", got.Header.Get("Age"))
		}
		wantAnswer(t, ask(t, a, at, "Cache-Control", "no-cache"), 200, digits)
		r.wantLast(t, 3, "If-None-Match", `"1"`, "Range", "")
	})
}

func TestWholeOfAnotherVersionReplacesThePart(t *testing.T) {
	for says, calls := range map[string]int{"max-age=60": 2, "no-store": 3} {
		withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
			ask(t, a, at, "Range", "bytes=0-3")
			r.content, r.etag, r.says = "abcdefghij", `"2"`, says
			wantAnswer(t, ask(t, a, at), 200, "abcdefghij")
			r.wantLast(t, 2, "Range", "bytes=4-")
			synctest.Wait() // it is stored
			wantPart(t, ask(t, a, at, "Range", "bytes=0-3"), "abcd", "bytes 0-3/10")
			r.wantLast(t, calls)
		})
	}
}

// An upstream that does not answer the range that it was asked for is asked for the whole.
func TestPartIsCompletedByItsRestOnly(t *testing.T) {
	type answer struct {
		status                   int
		etag, contentRange, body string
	}
	for name, c := range map[string]struct {
		rest  answer
		fails bool
		calls int
	}{
		"the rest":             {answer{206, `"1"`, "bytes 4-9/10", "456789"}, false, 2},
		"another ETag":         {answer{206, `"2"`, "bytes 4-9/10", "efghij"}, false, 3},
		"a weak ETag":          {answer{206, `W/"1"`, "bytes 4-9/10", "456789"}, false, 3},
		"another range":        {answer{206, `"1"`, "bytes 0-5/10", "012345"}, false, 3},
		"less":                 {answer{206, `"1"`, "bytes 4-6/10", "456"}, false, 3},
		"another total":        {answer{206, `"1"`, "bytes 4-9/11", "456789"}, false, 3},
		"no range":             {answer{206, `"1"`, "", "456789"}, false, 3},
		"beyond the end":       {answer{416, `"1"`, "bytes */4", ""}, false, 3},
		"a body that is short": {answer{206, `"1"`, "bytes 4-9/10", "4567"}, true, 2},
		"a body that is long":  {answer{206, `"1"`, "bytes 4-9/10", "4567890"}, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				base := roundTripper(func(req *http.Request) (*http.Response, error) {
					calls++
					if req.Header.Get("If-Range") != "" {
						h := http.Header{"Etag": {c.rest.etag}, "Cache-Control": {"max-age=60"}, "Content-Range": {c.rest.contentRange}}
						return &http.Response{StatusCode: c.rest.status, Header: h, Body: io.NopCloser(strings.NewReader(c.rest.body)), ContentLength: -1}, nil
					}
					return inMemory(serving(digits, `"1"`)).RoundTrip(req)
				})
				a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Base = base })
				ask(t, a, at, "Range", "bytes=0-3")
				got := ask(t, a, at)
				if c.fails != (got.err != nil) || !c.fails && got.body != digits || calls != c.calls {
					t.Errorf("got %q, %v, after %d calls", got.body, got.err, calls)
				}
				c.rest = answer{206, `"1"`, "bytes 4-9/10", "456789"}
				wantAnswer(t, ask(t, a, at), 200, digits)
			})
		})
	}
}

// A client gets no byte from beyond a gap, not even before an error.
func TestRestThatBreaksOffIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := inMemory(serving(digits, `"1"`)).RoundTrip(req)
			if req.Header.Get("If-Range") != "" {
				resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader("0123")), -1
			}
			return resp, err
		})
		a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Base = base })
		ask(t, a, at, "Range", "bytes=6-")
		if got := ask(t, a, at); got.err == nil || !strings.HasPrefix(digits, got.body) {
			t.Errorf("got %q, %v", got.body, got.err)
		}
	})
}

// A part need not repeat the fields of the whole (RFC 9110, 15.3.7).
func TestCompletedWholeHasTheFieldsOfBothParts(t *testing.T) {
	for _, second := range []string{"", "bytes=4-"} { // completed by the transport, and by its client
		synctest.Test(t, func(t *testing.T) {
			base := roundTripper(func(req *http.Request) (*http.Response, error) {
				resp, err := inMemory(serving(digits, `"1"`, "X-Old", "a", "X-Both", "a")).RoundTrip(req)
				if req.Header.Get("If-Range") != "" {
					resp.Header.Del("Content-Type")
					resp.Header.Del("X-Old")
					resp.Header.Set("X-Both", "b")
				}
				return resp, err
			})
			a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Base = base })
			ask(t, a, at, "Range", "bytes=0-3")
			if second != "" {
				ask(t, a, at, "Range", second, "If-Range", `"1"`)
			}
			for range 2 {
				got := ask(t, a, at)
				wantAnswer(t, got, 200, digits)
				if h := got.Header; h.Get("X-Old") != "a" || h.Get("X-Both") != "b" || h.Get("Content-Type") == "" {
					t.Errorf("header %v", h)
				}
			}
			ask(t, a, at+"?other", "Range", "bytes=0-3", "If-Range", `"1"`)
			if got := ask(t, a, at+"?other", "Range", "bytes=1-2"); got.Header.Get("Content-Type") == "" {
				t.Errorf("the fields that only the client has are missing: %v", got.Header)
			}
		})
	}
}

func TestWaitersShareACompletedWhole(t *testing.T) {
	withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
		ask(t, a, at, "Range", "bytes=0-3")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { wantAnswer(t, ask(t, a, at), 200, digits) })
		}
		wg.Wait()
		r.wantLast(t, 2)
	})
}

func TestDeleteDuringACompletionWins(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		began, goOn := make(chan struct{}, 1), make(chan struct{}, 1)
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-Range") != "" {
				began <- struct{}{}
				<-goOn
			}
			serving(digits, `"1"`)(w, r)
		})
		a, b := newTransport(t, open()), newTransport(t, open())
		url, _ := askStored(t, a, v, "GET", "Range", "bytes=0-3")
		done := make(chan answered)
		go func() { done <- ask(t, a, url) }()
		<-began
		purge(t, b, url)
		goOn <- struct{}{}
		wantAnswer(t, <-done, 200, digits)
		ask(t, a, url)
		v.wantCalls(t, 3)
		if v.last().Header.Get("Range") != "" {
			t.Error("the part is still there")
		}
	})
}

// The ETag is the same for all, as some servers have it.
func TestPartsOfVariantsStayApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		base := inMemory(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls++
			lang := r.Header.Get("Accept-Language")
			if strings.HasSuffix(r.URL.Path, "whole") {
				r = r.Clone(r.Context())
				delete(r.Header, "Range")
			}
			serving(strings.Repeat(lang, 5), `"1"`, "Vary", "Accept-Language")(w, r)
		}))
		a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Base = base })
		for _, c := range []struct {
			path, lang, part string
			status           int
			body             string
			calls            int
		}{
			{"", "de", "bytes=0-3", 206, "dede", 1},
			{"", "de", "bytes=1-2", 206, "ed", 1},
			{"", "en", "bytes=4-", 206, "enenen", 2}, // it touches the other variant's
			{"", "en", "bytes=5-6", 206, "ne", 2},
			{"", "en", "bytes=0-3", 206, "enen", 3},
			{"", "de", "", 200, "dedededede", 4},
			{"", "en", "", 200, "enenenenen", 5},
			{"", "de", "bytes=1-2", 206, "ed", 5},
			{"all", "de", "bytes=0-4", 206, "deded", 6},
			{"all", "de", "bytes=5-", 206, "edede", 7},
			{"all", "en", "", 200, "enenenenen", 8},
			{"whole", "de", "bytes=0-4", 200, "dedededede", 9},
			{"whole", "en", "", 200, "enenenenen", 10},
		} {
			header := []string{"Accept-Language", c.lang}
			if c.part != "" {
				header = append(header, "Range", c.part)
			}
			if wantAnswer(t, ask(t, a, at+c.path, header...), c.status, c.body); calls != c.calls {
				t.Errorf("%+v: %d calls", c, calls)
			}
			synctest.Wait() // the response is stored
		}
	})
}

// A GET that misses costs no further read where no parts are requested.
func TestGetLooksForPartsOfHostsWithParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := memoryFleet(t)
		var seen []string
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			seen = append(seen, fmt.Sprint(req.URL.Host, req.Header["Range"]))
			return inMemory(serving(digits, `"1"`)).RoundTrip(req)
		})
		o := func(o *transport.Options) { o.Base = base }
		a, b := newTransport(t, open(), o), newTransport(t, open(), o)
		ask(t, a, "http://parts.example/x", "Range", "bytes=0-3")
		ask(t, a, "http://parts.example/y", "Range", "bytes=0-3")
		ask(t, b, "http://parts.example/x")
		ask(t, b, "http://parts.example/z", "Range", "bytes=0-3")
		ask(t, b, "http://parts.example/y")
		want := "parts.example[bytes=0-3] parts.example[bytes=0-3] parts.example[] parts.example[bytes=0-3] parts.example[bytes=4-]"
		if got := strings.Join(seen, " "); got != want {
			t.Errorf("asked %s", got)
		}
	})
}

// An upstream that does not send the rest, now and always, does not keep a GET from the whole.
func TestRestThatBreaksOffDeletesThePart(t *testing.T) {
	inFleets(t, func(t *testing.T, open openFleet) {
		for name, sent := range map[string]string{"short": "45", "long": "4567890", "broken": "45!"} {
			v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("If-Range") == "" {
					serving(digits, `"1"`)(w, r)
					return
				}
				w.Header().Set("Etag", `"1"`)
				w.Header().Set("Content-Range", "bytes 4-9/10")
				if name == "broken" {
					w.Header().Set("Content-Length", "6")
				}
				w.WriteHeader(206)
				w.(http.Flusher).Flush()
				fmt.Fprint(w, sent)
				if name == "broken" {
					panic(http.ErrAbortHandler)
				}
			})
			a := newTransport(t, open())
			url, _ := askStored(t, a, v, "GET", "Range", "bytes=0-3")
			if got := ask(t, a, url); got.err == nil || got.ContentLength != 10 {
				t.Errorf("%s: %d bytes, got %q without an error", name, got.ContentLength, got.body)
			}
			wantAnswer(t, ask(t, a, url), 200, digits)
			v.wantCalls(t, 3)
		}
	})
}

// The trailers of the rest may have its digest.
func TestCompletedWholeHasNoTrailersOfTheRest(t *testing.T) {
	for _, announced := range []bool{false, true} {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-Range") == "" {
				serving(digits, `"1"`)(w, r)
				return
			}
			w.Header().Set("Etag", `"1"`)
			w.Header().Set("Content-Range", "bytes 4-9/10")
			if announced {
				w.Header().Set("Trailer", "Content-Digest")
			}
			w.WriteHeader(206)
			w.(http.Flusher).Flush()
			fmt.Fprint(w, "456789")
			if w.Header().Set("Content-Digest", "sha-256=:AA==:"); !announced {
				w.Header().Set(http.TrailerPrefix+"Content-Digest", "sha-256=:AA==:")
			}
		})
		base := &http.Transport{}
		sawTrailer := false
		a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
			o.Base = roundTripper(func(req *http.Request) (*http.Response, error) {
				resp, err := base.RoundTrip(req)
				if err == nil && req.Header.Get("If-Range") != "" {
					all, _ := io.ReadAll(resp.Body)
					sawTrailer = len(resp.Trailer) > 0
					resp.Body = io.NopCloser(strings.NewReader(string(all)))
				}
				return resp, err
			})
		})
		ask(t, a, v.URL, "Range", "bytes=0-3")
		for range 2 {
			got := ask(t, a, v.URL)
			wantAnswer(t, got, 200, digits)
			if len(got.Trailer) > 0 || got.Header.Get("Trailer") != "" {
				t.Errorf("trailer %v, header %v", got.Trailer, got.Header)
			}
		}
		if v.wantCalls(t, 2); !sawTrailer {
			t.Error("the rest had no trailer")
		}
	}
}
