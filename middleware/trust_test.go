package middleware_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// whose answers with the credentials that it was given.
func whose(headers ...string) http.HandlerFunc {
	return saying(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "for ", r.Header.Get("Authorization"), r.Header.Get("Cookie"), r.Header.Get("X-Api-Key"))
	}, headers...)
}

// trusted are requests without credentials and of two users, in the order of asking.
var trusted = [][]string{{"Cookie: sid=a"}, {}, {"Cookie: sid=b"}, {"X-Api-Key: c"}}

func TestTrustedOriginSharesAcrossCookies(t *testing.T) {
	for name, c := range map[string]struct {
		trust  bool
		header []string
		runs   int32
	}{
		"by default":             {false, []string{"Cache-Control: max-age=60"}, 4},
		"by default, public":     {false, []string{"Cache-Control: public, max-age=60"}, 2},
		"max-age":                {true, []string{"Cache-Control: max-age=60"}, 1},
		"Expires":                {true, []string{"Expires: Fri, 31 Dec 2100 23:59:59 GMT"}, 1},
		"Vary: Cookie":           {true, []string{"Cache-Control: max-age=60", "Vary: Cookie, X-Api-Key"}, 4},
		"private":                {true, []string{"Cache-Control: private, max-age=60"}, 4},
		"no-store":               {true, []string{"Cache-Control: no-store"}, 4},
		"Set-Cookie":             {true, []string{"Cache-Control: public, max-age=60", "Set-Cookie: sid=new"}, 4},
		"no lifetime":            {true, nil, 4},
		"validated for each use": {true, []string{"Cache-Control: no-cache", `ETag: "1"`}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFront(t, middleware.Options{TrustOrigin: c.trust, TTL: time.Minute}, whose(c.header...))
				for _, headers := range trusted {
					got := f.ask("/", headers...)
					if want := "for " + value(headers); c.runs == 4 && got.Body.String() != want {
						t.Errorf("%v: %q, want %q", headers, got.Body, want)
					}
				}
				if n := f.runs.Load(); n != c.runs {
					t.Errorf("%d runs, want %d", n, c.runs)
				}
			})
		})
	}
}

// value is the value of the first of some header lines.
func value(headers []string) string {
	if len(headers) == 0 {
		return ""
	}
	_, v, _ := strings.Cut(headers[0], ": ")
	return v
}

// lines are a request's header lines.
func lines(line string) []string {
	if line == "" {
		return nil
	}
	return []string{line}
}

func TestTrustedOriginSharesPublicPagesAcrossAuthorization(t *testing.T) {
	for _, says := range []string{"public, max-age=60", "s-maxage=60", "max-age=60, must-revalidate"} {
		for _, order := range [][]string{{"Authorization: a", ""}, {"", "Authorization: a"}, {"Authorization: a", "Authorization: b"}} {
			synctest.Test(t, func(t *testing.T) {
				f := newFront(t, middleware.Options{TrustOrigin: true}, whose("Cache-Control: "+says))
				for _, header := range order {
					f.is(f.ask("/", lines(header)...), 200, "for "+value(order[:1]))
				}
			})
		}
	}
}

func TestTrustedOriginKeepsAuthorizedPagesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TrustOrigin: true}, whose("Cache-Control: max-age=60"))
		for range 3 { // they do not take the page from requests without credentials either
			f.is(f.ask("/cold", "Authorization: a"), 200, "for a")
			f.is(f.ask("/cold", "Authorization: b"), 200, "for b")
		}
		f.is(f.ask("/"), 200, "for ")
		for range 3 {
			f.is(f.ask("/", "Authorization: a", "Cache-Control: no-cache"), 200, "for a")
			before := f.runs.Load()
			if f.is(f.ask("/"), 200, "for "); f.since(before) != 0 {
				t.Error("the page is gone")
			}
		}
	})
}

// The header of a 304 that was made with a user's credentials is for that user, unless it
// says otherwise.
func TestTrustedOriginJudgesA304ByItsOwnHeader(t *testing.T) {
	for says, shared := range map[string]bool{"": false, "private": false, "max-age=60": true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFront(t, middleware.Options{TrustOrigin: true}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Etag", `"1"`)
				w.Header().Set("X-User", r.Header.Get("Cookie"))
				if r.Header.Get("If-None-Match") == "" {
					w.Header().Set("Cache-Control", "max-age=1")
					fmt.Fprint(w, "page")
					return
				}
				if says != "" {
					w.Header().Set("Cache-Control", says)
				}
				w.WriteHeader(304)
			})
			f.is(f.ask("/"), 200, "page")
			time.Sleep(2 * time.Second)
			for _, user := range []string{"alice", "bob", ""} {
				want, got := user, f.ask("/", lines(strings.TrimSuffix("Cookie: "+user, "Cookie: "))...)
				if shared {
					want = "alice"
				}
				if f.is(got, 200, "page"); got.Header().Get("X-User") != want {
					t.Errorf("%q: %q got the header of %q", says, user, got.Header().Get("X-User"))
				}
			}
		})
	}
}

// A request with a cookie may be answered otherwise than the one without that it waited for.
func TestTrustedOriginPassesNoFailureAcrossCookies(t *testing.T) {
	for _, status := range []int{401, 404, 500} {
		synctest.Test(t, func(t *testing.T) {
			f := newFront(t, middleware.Options{TrustOrigin: true}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				if r.Header.Get("Cookie") == "" {
					w.WriteHeader(status)
				}
				fmt.Fprint(w, "for ", r.Header.Get("Cookie"))
			})
			var wg sync.WaitGroup
			wg.Go(func() { f.is(f.send(t.Context(), "/"), status, "for ") })
			synctest.Wait()
			wg.Go(func() { f.is(f.send(t.Context(), "/", "Cookie: sid=a"), 200, "for sid=a") })
			wg.Go(func() { f.is(f.send(t.Context(), "/", "Cookie: sid=b"), 200, "for sid=b") })
			wg.Wait()
		})
	}
}
