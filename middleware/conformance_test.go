package middleware_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// RFC 9111, 4.3.3 and 5.2.2.2: where staleness is forbidden the origin's error is
// the answer.
func TestErrorIsForwardedWhereStaleIsForbidden(t *testing.T) {
	for _, cc := range []string{"max-age=1, must-revalidate", "max-age=1", "no-cache", "s-maxage=1"} {
		t.Run(cc, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrigin(cc, `"v"`)
				opts := middleware.Options{Stale: time.Hour}
				if cc == "max-age=1" {
					opts.Stale = 0
				}
				s := openInBubble(t, opts, o.ServeHTTP)
				s.is(s.do("/"), 200, "run 1")
				time.Sleep(1100 * time.Millisecond)
				o.status.Store(503)
				other := `"w"`
				o.etag.Store(&other)
				s.is(s.do("/"), 503, "run 2")
			})
		})
	}
}

// RFC 9111, 4.3.4: a 304 that speaks of another response than the stored one.
func TestNotModifiedThatSpeaksOfSomethingElse(t *testing.T) {
	var runs atomic.Int32
	s := open(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		w.Header().Set("Cache-Control", "no-cache")
		if r.Header.Get("If-None-Match") != "" {
			w.Header().Set("ETag", `"other"`)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", `"v"`)
		fmt.Fprint(w, "whole")
	})
	s.is(s.do("/"), 200, "whole")
	s.is(s.do("/"), 200, "whole")
	if n := runs.Load(); n != 3 {
		t.Errorf("%d runs", n)
	}
}

// RFC 9111, 5.2.2.6: no-transform.
func TestNoTransformIsNotCompressed(t *testing.T) {
	s := open(t, middleware.Options{Compress: true}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60, no-transform")
		fmt.Fprint(w, strings.Repeat("text ", 1000))
	})
	s.do("/")
	if g := s.do("/", "Accept-Encoding: gzip"); g.Header.Get("Content-Encoding") != "" {
		t.Error(g.Header)
	}
}

// RFC 9110, 7.6.1: the fields of a connection aren't stored.
func TestConnectionFieldsAreNotStored(t *testing.T) {
	s := open(t, middleware.Options{}, saying(number(), "Cache-Control: max-age=60", "Connection: X-Hop", "X-Hop: a", "Keep-Alive: timeout=5", "Proxy-Authenticate: x", "X-End: b"))
	s.do("/")
	g := s.do("/")
	s.hit(g)
	for _, name := range []string{"X-Hop", "Keep-Alive", "Proxy-Authenticate"} {
		if g.Header.Get(name) != "" {
			t.Errorf("%s: %s", name, g.Header.Get(name))
		}
	}
	if g.Header.Get("X-End") != "b" {
		t.Error(g.Header)
	}
}

// RFC 9211, 2: every response has a member, and the key only if asked for.
func TestEveryResponseHasCacheStatus(t *testing.T) {
	for _, key := range []bool{false, true} {
		s := open(t, middleware.Options{ShowKey: key, Rules: []middleware.Rule{{Pattern: "/by", Bypass: true}}}, saying(number(), "Cache-Control: max-age=60", `ETag: "v"`))
		for _, c := range []struct{ what, header, want string }{
			{"/", "", "fwd=uri-miss;stored"},
			{"/", "", ";ttl="}, // a hit, or collapsed: then it is stored
			{"/", "Range: bytes=0-1", "hit;ttl="},
			{"/", `If-None-Match: "v"`, "hit;ttl="},
			{"/", "Cache-Control: no-cache", "fwd=request"},
			{"HEAD /", "", "hit;ttl="},
			{"HEAD /new", "", "fwd=uri-miss"},
			{"POST /", "", "fwd=method"},
			{"OPTIONS /", "", "fwd=method"},
			{"/by", "", "fwd=bypass"},
			{"/c", "Cookie: a=b", "detail=personal"},
			{"/none", "Cache-Control: only-if-cached", "detail=only-if-cached"},
		} {
			g := s.do(c.what, append([]string{"X-Nothing: 1"}, headers(c.header)...)...)
			if !strings.HasPrefix(g.status(), "http;") || !strings.Contains(g.status(), c.want) {
				t.Errorf("%s %s: %q, want %s", c.what, c.header, g.status(), c.want)
			}
			if got := strings.Contains(g.status(), "key="); got && !key {
				t.Errorf("%s shows its key: %s", c.what, g.status())
			}
		}
	}
}

func headers(line string) []string {
	if line == "" {
		return nil
	}
	return []string{line}
}
