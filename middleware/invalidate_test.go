package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/tap"
	"github.com/stampedeguard/stampede/middleware"
)

// shop answers GET with a number, and POST in the way that its query asks for.
func shop() http.HandlerFunc {
	get := number()
	return func(w http.ResponseWriter, r *http.Request) {
		switch to := r.URL.Query().Get("to"); {
		case r.Method == "GET":
			get(w, r)
		case to != "":
			http.Redirect(w, r, to, http.StatusSeeOther)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}
}

func TestRefusedRequestInvalidatesNothing(t *testing.T) {
	for _, c := range []struct {
		what string
		page string
		kept bool
	}{
		{"POST /hot", "/hot", false},
		{"POST /hot?to=/hot", "/hot?to=/hot", false},
		{"POST /hot?to=/hot/17", "/hot?to=/hot/17", false},
		{"POST /x?to=/hot", "/hot", false},
		{"POST /hot?to=/login", "/hot?to=/login", true},
		{"POST /hot?to=/user/sign-in%3Fnext=/hot", "/hot?to=/user/sign-in%3Fnext=/hot", true},
		{"POST /hot?to=https://sso.example/x", "/hot?to=https://sso.example/x", true},
		{"POST /login?to=/hot", "/hot", true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFront(t, middleware.Options{TTL: time.Minute}, shop())
			f.is(f.ask(c.page), 200, "run 1")
			f.ask(c.what)
			if w := f.ask(c.page); (w.Body.String() == "run 1") != c.kept {
				t.Errorf("after %s: %s is %q", c.what, c.page, w.Body)
			}
		})
	}
}

func TestInvalidatesNarrowsToATenant(t *testing.T) {
	for scope, want := range map[middleware.Scope][2]string{
		middleware.AllPages: {"run 3", "run 4"}, middleware.OwnPages: {"run 3", "run 2"}, middleware.NoPages: {"run 1", "run 2"},
	} {
		for name, o := range map[string]middleware.Options{
			"Headers": {Headers: []string{"X-Tenant"}}, "Cookies": {Cookies: []string{"tenant"}},
			"Key":  {Key: func(r *http.Request) string { return r.Header.Get("X-Tenant") }, Forward: []string{"X-Tenant"}},
			"Rule": {Rules: []middleware.Rule{{Pattern: "/", TTL: time.Minute, Headers: []string{"X-Tenant"}}}},
		} {
			t.Run(fmt.Sprint(name, scope), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o.TTL, o.Invalidates = time.Minute, func(*http.Request, int) middleware.Scope { return scope }
					f := newFront(t, o, shop())
					header := map[bool]string{true: "Cookie: tenant=", false: "X-Tenant: "}[o.Cookies != nil]
					of := func(what, tenant string) *httptest.ResponseRecorder { return f.ask(what, header+tenant) }
					of("/", "a")
					of("/", "b")
					of("POST /", "a")
					f.is(of("/", "a"), 200, want[0])
					f.is(of("/", "b"), 200, want[1])
				})
			})
		}
	}
}

func TestInvalidatesSeesTheRequestAndItsStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Minute, Invalidates: func(r *http.Request, status int) middleware.Scope {
			if status == 204 && r.Header.Get("Authorization") == "editor" {
				return middleware.AllPages
			}
			return middleware.NoPages
		}}, shop())
		f.ask("/")
		f.ask("POST /", "Authorization: guest")
		f.is(f.ask("/"), 200, "run 1")
		f.ask("POST /", "Authorization: editor")
		f.is(f.ask("/"), 200, "run 2")
	})
}

func TestPurgeHandlerAsksForACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Minute}, number())
		f.ask("/")
		for _, allowed := range []func(*http.Request) bool{nil, func(r *http.Request) bool { return r.Header.Get("Authorization") == "editor" }} {
			w := httptest.NewRecorder()
			f.m.PurgeHandler(allowed).ServeHTTP(w, request("PURGE /"))
			f.is(w, 403, "not allowed to purge\n")
		}
		f.is(f.ask("/"), 200, "run 1")
	})
}

// While the store is away, a few slow pages hold up no other.
func TestSlowPagesHoldUpNoOtherWithoutAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := tap.New(newStore(t))
		store.OnRead = tap.Unread
		f := newFrontOn(t, store, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				time.Sleep(3 * time.Second)
			}
			fmt.Fprint(w, "page")
		})
		for i := range 200 {
			go f.send(t.Context(), fmt.Sprint("/slow?", i))
		}
		synctest.Wait()
		began := time.Now()
		f.is(f.ask("/fast"), 200, "page")
		if d := time.Since(began); d > 0 {
			t.Errorf("it took %v", d)
		}
		time.Sleep(10 * time.Second)
	})
}

// A failure has its status in all processes.
func TestFailureHasItsStatusInEveryProcess(t *testing.T) {
	for _, status := range []int{500, 501, 502, 503, 504, 521} {
		synctest.Test(t, func(t *testing.T) {
			memory := newStore(t)
			joined := memory.Join()
			var bad atomic.Bool
			h := func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(100 * time.Millisecond)
				if bad.Load() {
					http.Error(w, "failed", status)
					return
				}
				w.Header().Set("Cache-Control", "no-cache")
				w.Header().Set("ETag", `"a"`)
				fmt.Fprint(w, "page")
			}
			one := newFrontOn(t, memory, middleware.Options{Policy: func(p *guard.Policy) { p.Beta = guard.Off }}, h)
			two := newFrontOn(t, joined, middleware.Options{}, h)
			t.Cleanup(func() { _ = joined.Close() })
			one.ask("/")
			bad.Store(true)
			for range 5 {
				go one.send(t.Context(), "/")
			}
			time.Sleep(time.Millisecond)
			for answer := range two.herd(5, "/") {
				if answer[:3] != fmt.Sprint(status) {
					t.Errorf("in another process: %s, want %d", answer, status)
				}
			}
		})
	}
}
