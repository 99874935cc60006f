package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// tagged answers with the number of its run; its tags are the query's.
func tagged(headers ...string) http.HandlerFunc {
	n := number()
	return func(w http.ResponseWriter, r *http.Request) {
		for _, name := range headers {
			w.Header().Add(name, strings.ReplaceAll(r.URL.Query().Get("tags"), ".", " "))
		}
		n(w, r)
	}
}

func TestPurgeTag(t *testing.T) {
	for name, o := range map[string]middleware.Options{
		"headers": {TagHeaders: []string{"surrogate-key", "Cache-Tag"}},
		"func": {Tags: func(r *http.Request, _ http.Header) []string {
			return strings.Split(r.URL.Query().Get("tags"), ".")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o.TTL, o.Stale = time.Minute, time.Minute
			s := open(t, o, tagged("Surrogate-Key", "Cache-Tag"))
			pages := []string{"/a?tags=x", "/b?tags=x.y", "/c?tags=z"}
			stored := func(page string) string {
				s.do(page)
				g := s.do(page)
				s.hit(g)
				return g.body
			}
			before := map[string]string{}
			for _, p := range pages {
				before[p] = stored(p)
			}
			purge := func(do func() error, gone ...string) {
				t.Helper()
				if err := do(); err != nil {
					t.Fatal(err)
				}
				for _, p := range pages {
					g := s.do(p)
					if slices.Contains(gone, p) {
						eventually(t, p+" is produced anew", func() bool { g = s.do(p); return g.body != before[p] })
					}
					if new := g.body != before[p]; new != slices.Contains(gone, p) {
						t.Errorf("%s: %q, was %q", p, g.body, before[p])
					}
					before[p] = g.body
				}
			}
			purge(func() error { return s.m.PurgeTag(t.Context(), "y") }, pages[1])
			purge(func() error { return s.m.PurgeTag(t.Context(), "x") }, pages[0], pages[1])
			purge(func() error { return s.m.PurgeTag(t.Context(), "nothing") })
			for _, p := range pages {
				before[p] = stored(p)
			}
			if err := s.m.SoftPurgeTag(t.Context(), "z"); err != nil {
				t.Fatal(err)
			}
			s.is(s.do(pages[2], "Cache-Control: only-if-cached"), 200, before[pages[2]]) // it is stale, and there
			purge(func() error { return nil }, pages[2])
		})
	}
}

// A run that is under way brings back nothing that was purged, be it a page or
// the first variant of one.
func TestPurgeTagMeetsRunsUnderWay(t *testing.T) {
	for _, vary := range []string{"", "Accept-Language"} {
		t.Run("Vary: "+vary, func(t *testing.T) {
			inside, release := make(chan struct{}), make(chan struct{})
			n := number()
			var s *site
			s = open(t, middleware.Options{TTL: time.Minute, TagHeaders: []string{"Cache-Tag"}}, func(w http.ResponseWriter, r *http.Request) {
				if s.runs.Load() == 1 {
					close(inside)
					<-release
				}
				w.Header().Set("Cache-Tag", "x")
				if vary != "" {
					w.Header().Set("Vary", vary)
				}
				n(w, r)
			})
			first := make(chan got, 1)
			go func() { first <- s.do("/") }()
			<-inside
			if err := s.m.PurgeTag(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			close(release)
			s.is(<-first, 200, "run 1")
			s.is(s.do("/"), 200, "run 2")
			s.is(s.do("/"), 200, "run 2")
		})
	}
}

// A failure that answers the requests that wait for it is from before a purge, too.
func TestPurgeTagReachesWaitersOfAFailure(t *testing.T) {
	for _, known := range []bool{false, true} { // a page is stored and stale
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			n := number()
			var f *front
			f = newFront(t, middleware.Options{TagHeaders: []string{"Cache-Tag"}}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Tag", "x")
				if known && f.runs.Load() == 1 {
					w.Header().Set("Cache-Control", "max-age=1")
					w.Header().Set("ETag", `"v"`)
					return
				}
				<-release
				w.WriteHeader(http.StatusForbidden)
				n(w, r)
			})
			if known {
				f.is(f.ask("/"), 200, "")
				time.Sleep(2 * time.Second)
			}
			var wg sync.WaitGroup
			wg.Go(func() { f.is(f.send(context.Background(), "/"), 403, "run 1") })
			synctest.Wait()
			time.Sleep(time.Millisecond)
			if err := f.m.PurgeTag(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { f.is(f.send(context.Background(), "/"), 403, "run 2") })
			synctest.Wait()
			close(release)
			wg.Wait()
			synctest.Wait()
		})
	}
}

// A response that can't carry its tags isn't shared, as no tag could purge it.
func TestTooManyTags(t *testing.T) {
	var many []string
	for i := range 17 {
		many = append(many, fmt.Sprint("t", i))
	}
	for _, tags := range []string{strings.Join(many, ","), strings.Repeat("x", 257)} {
		s := open(t, middleware.Options{TagHeaders: []string{"Cache-Tag"}}, saying(number(), "Cache-Control: max-age=60", "Cache-Tag: "+tags))
		g := s.do("/")
		s.is(g, 200, "run 1")
		if !strings.Contains(g.status(), "detail=tags") {
			t.Error(g.status())
		}
		s.is(s.do("/"), 200, "run 2")
		if g := s.do("/"); !strings.Contains(g.status(), "fwd=bypass") {
			t.Errorf("queues again: %s", g.status())
		}
	}
	s := open(t, middleware.Options{TagHeaders: []string{"Cache-Tag"}}, saying(number(), "Cache-Control: max-age=60", "Cache-Tag: "+strings.Join(many[:16], ",")))
	s.is(s.do("/"), 200, "run 1")
	s.is(s.do("/"), 200, "run 1")
}

// A 304 is stored as a whole response. Its tags replace those of the same field.
func TestValidationKeepsOrReplacesTags(t *testing.T) {
	for name, c := range map[string]struct {
		control    string // of the whole response, besides its lifetime
		validation string // tags that the 304 names
		carries    string // tags that the page has afterwards
		full       bool   // the page is fetched anew instead
	}{
		"none":                    {validation: "", carries: "old"},
		"the same":                {validation: "old", carries: "old"},
		"others":                  {validation: "new", carries: "new"},
		"more":                    {validation: "old new", carries: "old new"},
		"none, and none stored":   {control: `, no-cache="Cache-Tag"`, carries: "old", full: true},
		"others, and none stored": {control: `, no-cache="Cache-Tag"`, validation: "new", carries: "old", full: true},
	} {
		for _, purged := range []string{"old", "new"} {
			t.Run(name+", purged by "+purged, func(t *testing.T) {
				s := open(t, middleware.Options{TagHeaders: []string{"Cache-Tag"}}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("ETag", `"v"`)
					if r.Header.Get("If-None-Match") == `"v"` {
						w.Header().Set("Cache-Control", "max-age=60")
						if c.validation != "" {
							w.Header().Set("Cache-Tag", c.validation)
						}
						w.WriteHeader(http.StatusNotModified)
						return
					}
					w.Header().Set("Cache-Control", "max-age=60"+c.control)
					w.Header().Set("Cache-Tag", "old")
					fmt.Fprint(w, "hello")
				})
				s.is(s.do("/"), 200, "hello")
				s.stored("/", "hello")
				g := s.do("/", "Cache-Control: no-cache")
				s.is(g, 200, "hello")
				if full := !strings.Contains(g.status(), "fwd-status=304"); full != c.full {
					t.Errorf("fetched in full: %v, want %v; %s", full, c.full, g.status())
				}
				s.stored("/", "hello")
				if err := s.m.PurgeTag(t.Context(), purged); err != nil {
					t.Fatal(err)
				}
				left := s.do("/", "Cache-Control: only-if-cached").StatusCode == 200
				if want := !slices.Contains(strings.Fields(c.carries), purged); left != want {
					t.Errorf("the page is left: %v, want %v", left, want)
				}
			})
		}
	}
}

// A 304 may itself say that its tags are not to be stored. They count all the same.
func TestUnstorableTagsOfAValidationCount(t *testing.T) {
	s := open(t, middleware.Options{TagHeaders: []string{"Cache-Tag"}}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v"`)
		w.Header().Set("Cache-Tag", "old")
		w.Header().Set("Cache-Control", "max-age=60")
		if r.Header.Get("If-None-Match") == `"v"` {
			w.Header().Set("Cache-Tag", "new")
			w.Header().Set("Cache-Control", `max-age=60, no-cache="Cache-Tag"`)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprint(w, "hello")
	})
	s.is(s.do("/"), 200, "hello")
	s.stored("/", "hello")
	s.is(s.do("/", "Cache-Control: no-cache"), 200, "hello")
	s.stored("/", "hello")
	if err := s.m.PurgeTag(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	if g := s.do("/", "Cache-Control: only-if-cached"); g.StatusCode == 200 {
		t.Errorf("the page is left: %s", g.status())
	}
}
