package middleware_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// varying answers with a header of the request that it names in Vary.
func varying(name, cacheControl string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(100 * time.Millisecond)
		w.Header().Set("Vary", name)
		w.Header().Set("Cache-Control", cacheControl)
		fmt.Fprint(w, r.Header.Get(name))
	}
}

func TestUnknownCodingsAreNoVariants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{}, varying("Accept-Encoding", "max-age=60"))
		f.is(f.ask("/", "Accept-Encoding: gzip, br;q=0.5"), 200, "gzip, br;q=0.5")
		before := f.runs.Load()
		for i := range 40 {
			f.is(f.ask("/", fmt.Sprintf("Accept-Encoding: x%d, GZIP, gzip , br;q=0.5,y%d;q=1", i, i)), 200, "gzip, br;q=0.5")
		}
		if n := f.since(before); n != 0 {
			t.Errorf("%d runs", n)
		}
		f.is(f.ask("/", "Accept-Encoding: junk"), 200, "")
	})
}

func TestLanguageSpellingsShareTheirCommonForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, opts := range []middleware.Options{{}, {Forward: []string{middleware.AllHeaders}}} {
			f := newFront(t, opts, varying("Accept-Language", "max-age=60"))
			f.is(f.ask("/", "Accept-Language: fr ; q=0.50, de-de"), 200, "de-DE,fr;q=0.5")
			before := f.runs.Load()
			f.is(f.ask("/", "Accept-Language: DE-de, FR;q=0.5"), 200, "de-DE,fr;q=0.5")
			f.is(f.ask("/", "Accept-Language: de-DE", "Accept-Language: fr;q=0.5"), 200, "de-DE,fr;q=0.5")
			if n := f.since(before); n != 0 {
				t.Errorf("%d runs", n)
			}
			f.is(f.ask("/", "Accept-Language: de-DE, fr;q=0.6"), 200, "de-DE,fr;q=0.6")
			f.is(f.ask("/", "Accept-Language: no language"), 200, "no language")
		}
	})
}

func TestJunkVariantsLeaveRealOnesTogether(t *testing.T) {
	for _, maxAge := range []string{"1", "600"} { // the junk is stale, or fresh
		t.Run(maxAge, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFront(t, middleware.Options{}, varying("Accept-Language", "max-age="+maxAge))
				for i := range 40 {
					f.ask("/", fmt.Sprint("Accept-Language: junk-", i))
				}
				time.Sleep(3 * time.Second)
				for range 3 {
					before := f.runs.Load()
					f.all(f.herd(200, "/", "Accept-Language: de"), 200, "200 de")
					if n := f.since(before); n > 1 {
						t.Errorf("%d runs for 200 requests", n)
					}
				}
			})
		})
	}
}

// A flood of junk variants drops no variant that is in use.
func TestVariantInUseOutlivesJunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{MaxVariants: 8}, varying("Accept-Language", "max-age=3600"))
		f.ask("/", "Accept-Language: de")
		real := 0
		for i := range 100 {
			f.ask("/", fmt.Sprint("Accept-Language: junk-", i))
			before := f.runs.Load()
			f.is(f.ask("/", "Accept-Language: de"), 200, "de")
			real += f.since(before)
		}
		if real != 0 {
			t.Errorf("%d runs for a variant that is fresh", real)
		}
		if n := f.m.Variants(t.Context(), "http://site.example/"); n != 8 {
			t.Errorf("%d variants are stored, want 8", n)
		}
	})
}

// A variant that lost its place is deleted: the bound is one of memory.
func TestDroppedVariantIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{MaxVariants: 2}, varying("Accept-Language", "max-age=3600"))
		for _, lang := range []string{"a", "b", "c"} {
			f.ask("/", "Accept-Language: "+lang)
		}
		if w := f.ask("/", "Accept-Language: a", "Cache-Control: only-if-cached"); w.Code != 504 {
			t.Errorf("the first variant: %d %q", w.Code, w.Body)
		}
		f.is(f.ask("/", "Accept-Language: c", "Cache-Control: only-if-cached"), 200, "c")
	})
}
