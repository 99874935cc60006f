package transport_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// An origin is a base transport that answers by itself, for bubbles.
type origin struct {
	handle http.HandlerFunc
	calls  atomic.Int32
}

func (o *origin) RoundTrip(r *http.Request) (*http.Response, error) {
	o.calls.Add(1)
	w := &answer{header: http.Header{}}
	o.handle(w, r)
	return w.response(r), nil
}

// bubble runs a test on a transport in front of a handler.
func bubble(t *testing.T, o transport.Options, h http.HandlerFunc, test func(t *testing.T, v *origin, rt *transport.Transport)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := &origin{handle: h}
		o.Base = v
		rt, err := transport.New(memoryFleet(t)(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = rt.Close(); time.Sleep(time.Minute) })
		test(t, v, rt)
	})
}

const page = "http://vendor.example/page"

// together sends n requests at once and returns how many had each answer.
func together(t *testing.T, rt http.RoundTripper, n int, header ...string) map[string]int {
	answers := map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			a := ask(t, rt, page, header...)
			mu.Lock()
			defer mu.Unlock()
			answers[fmt.Sprint(a.StatusCode, " ", a.body)]++
		})
	}
	wg.Wait()
	synctest.Wait()
	return answers
}

// evil answers requests with an odd Accept in a way, and others with a page.
func evil(cacheControl string, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(100 * time.Millisecond)
		if strings.Contains(r.Header.Get("Accept"), "evil") {
			answer(w, r)
			return
		}
		w.Header().Set("Cache-Control", cacheControl)
		fmt.Fprint(w, "good")
	}
}

var odd = map[string]http.HandlerFunc{
	"406": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad", http.StatusNotAcceptable) },
	"406, max-age": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.WriteHeader(406)
	},
	"500":      func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad", 500) },
	"302":      func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) },
	"no-store": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Cache-Control", "no-store") },
	"Vary: *":  func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Vary", "*") },
}

func TestOddAnswerLeavesThePage(t *testing.T) {
	for name, answer := range odd {
		for _, shared := range []bool{false, true} {
			for _, cc := range []string{"public, max-age=3600", "public, max-age=1, stale-while-revalidate=600", "public, max-age=1"} {
				t.Run(fmt.Sprint(name, shared, cc), func(t *testing.T) {
					bubble(t, transport.Options{Shared: shared}, evil(cc, answer), func(t *testing.T, v *origin, rt *transport.Transport) {
						ask(t, rt, page)
						synctest.Wait()
						if cc == "public, max-age=3600" {
							ask(t, rt, page, "Accept", "evil", "Cache-Control", "no-cache")
						} else {
							time.Sleep(1500 * time.Millisecond)
							go ask(t, rt, page, "Accept", "evil")
							time.Sleep(10 * time.Millisecond)
						}
						before := v.calls.Load()
						answers := together(t, rt, 100)
						if name == "500" && cc == "public, max-age=1" {
							return // a failure answers all that waited for it
						}
						if answers["200 good"] != 100 {
							t.Errorf("%v", answers)
						}
						if n := v.calls.Load() - before; n > 1 {
							t.Errorf("%d calls for 100 requests", n)
						}
					})
				})
			}
		}
	}
}

// A user's validation of a page is a call of the user's own.
func TestPauseOfAUserEndsTheUsersValidations(t *testing.T) {
	bubble(t, transport.Options{Shared: true}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if r.Header.Get("Authorization") == "mallory" {
			w.Header().Set("Retry-After", "600")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Cache-Control", "public, no-cache")
		fmt.Fprint(w, "fine")
	}, func(t *testing.T, v *origin, rt *transport.Transport) {
		wantAnswer(t, ask(t, rt, page, "Authorization", "alice"), 200, "fine")
		synctest.Wait()
		for range 3 {
			if a := ask(t, rt, page, "Authorization", "mallory"); a.StatusCode != 429 || a.Header.Get("Retry-After") == "" {
				t.Errorf("%d %v", a.StatusCode, a.Header)
			}
		}
		if n := v.calls.Load(); n != 2 {
			t.Errorf("%d calls, want 2", n)
		}
	})
}

func TestPauseOfAUserIsTheUsers(t *testing.T) {
	for _, status := range []int{429, 503, 403} {
		bubble(t, transport.Options{Shared: true}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(100 * time.Millisecond)
			if r.Header.Get("Authorization") == "mallory" {
				w.Header().Set("Retry-After", "600")
				w.WriteHeader(status)
				return
			}
			w.Header().Set("Cache-Control", "public, max-age=1")
			fmt.Fprint(w, "fine")
		}, func(t *testing.T, v *origin, rt *transport.Transport) {
			go ask(t, rt, page, "Authorization", "mallory")
			time.Sleep(time.Millisecond)
			if answers := together(t, rt, 20, "Authorization", "alice"); answers["200 fine"] != 20 {
				t.Errorf("%d: %v", status, answers)
			}
			time.Sleep(2 * time.Second) // the page is stale
			before := v.calls.Load()
			if a := ask(t, rt, page, "Authorization", "mallory"); a.StatusCode != status || a.Header.Get("Retry-After") == "" || v.calls.Load() != before {
				t.Errorf("in the pause: %d %v, %d calls", a.StatusCode, a.Header, v.calls.Load()-before)
			}
			wantAnswer(t, ask(t, rt, page, "Authorization", "alice"), 200, "fine")
			synctest.Wait()                                                          // a response is stored a moment after its client has it
			wantAnswer(t, ask(t, rt, page, "Authorization", "mallory"), 200, "fine") // it is fresh
			time.Sleep(11 * time.Minute)
			if before = v.calls.Load(); ask(t, rt, page, "Authorization", "mallory").StatusCode != status || v.calls.Load() == before {
				t.Error("the pause has no end")
			}
		})
	}
}

// A learning budget notes that it was told something.
type learning struct{ told atomic.Int32 }

func (l *learning) Spend(context.Context, guard.Spending) (guard.Expense, error) { return l, nil }
func (l *learning) Settle(int)                                                   {}
func (l *learning) Exhausted(guard.Priority) bool                                { return false }
func (l *learning) Known() guard.BudgetState                                     { return guard.BudgetState{} }

func (l *learning) Learn(context.Context, int, http.Header) (budget.Advice, error) {
	l.told.Add(1)
	return budget.Advice{}, nil
}

func TestBudgetLearnsFromNamedHostsOnly(t *testing.T) {
	for name, want := range map[string]int32{"vendor.example": 1, "*.example": 1, "other.example": 0} {
		var b learning
		o := transport.Options{HostPolicy: transport.HostPolicy{Budget: &b}, Hosts: map[string]transport.HostPolicy{name: {}}}
		bubble(t, o, odd["406"], func(t *testing.T, _ *origin, rt *transport.Transport) {
			if ask(t, rt, page); b.told.Load() != want {
				t.Errorf("%s: it was told %d times, want %d", name, b.told.Load(), want)
			}
		})
	}
}

// identities are headers by which vendors select a user, a role or a form of the answer.
var identities = []string{
	"Authorization", "AccessKey", "X-Accesskey", "AppKey", "X-Username", "Username", "Login", "Sudo", "Amazon-Advertising-Api-Scope",
	"Dropbox-Api-Select-User", "X-Profile-Id", "X-Store-Id", "X-Role", "X-Otp", "From", "X-Acting-As", "X-Device-Id", "X-Database",
	"X-Namespace", "X-Forwarded-For", "X-Real-Ip", "X-Hasura-Role", "X-Saml-Assertion", "X-Nonce", "Stripe-Version",
	"X-Github-Api-Version", "Accept", "Accept-Language", "Prefer", "X-Bot", "X-Contact",
}

// A response that states no lifetime does not know of caches.
func TestHeadersBesideATTLTellRequestsApart(t *testing.T) {
	for _, name := range identities {
		t.Run(name, func(t *testing.T) {
			bubble(t, transport.Options{HostPolicy: transport.HostPolicy{TTL: time.Minute}}, func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, "for ", r.Header.Get(name))
			}, func(t *testing.T, v *origin, rt *transport.Transport) {
				for range 2 {
					for _, who := range []string{"alice", "bob", ""} {
						header := []string{name, who}
						if who == "" {
							header = nil
						}
						wantAnswer(t, ask(t, rt, page, header...), 200, "for "+who)
						synctest.Wait()
					}
				}
				if v.calls.Load() != 3 {
					t.Errorf("%d calls, want one for each", v.calls.Load())
				}
				askWith(t, rt, http.MethodPost, page, name, "alice", "Content-Type", "text/plain")
				if ask(t, rt, page, name, "alice"); v.calls.Load() != 5 {
					t.Error("the POST invalidated nothing")
				}
			})
		})
	}
}

func TestHarmlessHeadersBesideATTLDoNot(t *testing.T) {
	o := transport.Options{HostPolicy: transport.HostPolicy{TTL: time.Minute}, Harmless: []string{"X-Color"}}
	for _, name := range []string{"User-Agent", "Traceparent", "X-Request-Id", "X-Color", "Idempotency-Key", "Referer"} {
		bubble(t, o, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "page") }, func(t *testing.T, v *origin, rt *transport.Transport) {
			ask(t, rt, page, name, "a")
			synctest.Wait()
			if ask(t, rt, page, name, "b"); v.calls.Load() != 1 {
				t.Errorf("%s: %d calls", name, v.calls.Load())
			}
		})
	}
}

// Explicit lifetimes are shared as Vary says.
func TestHeadersBesideALifetimeAreThoseOfVary(t *testing.T) {
	bubble(t, transport.Options{HostPolicy: transport.HostPolicy{TTL: time.Minute}}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
	}, func(t *testing.T, v *origin, rt *transport.Transport) {
		ask(t, rt, page, "X-Color", "a")
		synctest.Wait()
		if ask(t, rt, page, "X-Color", "b"); v.calls.Load() != 1 {
			t.Errorf("%d calls", v.calls.Load())
		}
	})
}

// A body may have a part of the session that its cookie begins.
func TestSessionThatBeginsIsNotShared(t *testing.T) {
	for _, c := range []struct {
		cookie, cc string
		shared     bool
		header     []string
		want       int32
	}{
		{"sid=1", "", false, nil, 2},
		{"sid=1", "", true, nil, 2},
		{"sid=1", "max-age=60", false, nil, 1}, // it knows of caches
		{"sid=1", "", false, []string{"Cookie", "sid=1"}, 1},
		{"__cf_bm=1", "", false, nil, 1},
		{"AWSALB=1; path=/", "", true, nil, 1},
	} {
		o := transport.Options{Shared: c.shared, HostPolicy: transport.HostPolicy{TTL: time.Minute}}
		bubble(t, o, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Set-Cookie", c.cookie)
			if c.cc != "" {
				w.Header().Set("Cache-Control", c.cc)
			}
			fmt.Fprint(w, "csrf token")
		}, func(t *testing.T, v *origin, rt *transport.Transport) {
			ask(t, rt, page, c.header...)
			synctest.Wait()
			if ask(t, rt, page, c.header...); v.calls.Load() != c.want {
				t.Errorf("%+v: %d calls", c, v.calls.Load())
			}
		})
	}
}

func TestMustRevalidateSharesNoUsersPages(t *testing.T) {
	bubble(t, transport.Options{Shared: true}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60, must-revalidate")
		fmt.Fprint(w, "for ", r.Header.Get("Authorization"), r.Header.Get("Cookie"))
	}, func(t *testing.T, _ *origin, rt *transport.Transport) {
		ask(t, rt, page, "Authorization", "alice")
		synctest.Wait()
		wantAnswer(t, ask(t, rt, page, "Authorization", "bob"), 200, "for bob")
		wantAnswer(t, ask(t, rt, page, "Cookie", "carol"), 200, "for carol")
	})
}
