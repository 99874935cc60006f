package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware"
)

// identityHeaders are headers by which servers and authenticating proxies know a user.
var identityHeaders = []string{
	"Authorization", "Cookie", "X-Api-Key", "X-Auth-Token", "X-Access-Token", "Private-Token", "Api-Key", "Apikey", "X-Session-Token",
	"X-Session-Id", "X-User-Id", "X-Forwarded-User", "X-Remote-User", "Remote-User", "X-Auth-Request-User", "X-Auth-Request-Email",
	"X-Auth-Request-Access-Token", "X-Forwarded-Access-Token", "X-Forwarded-Email", "X-Forwarded-Client-Cert", "X-Ssl-Client-Cert",
	"Client-Cert", "Ssl-Client-Subject-Dn", "X-Goog-Iap-Jwt-Assertion", "X-Goog-Authenticated-User-Email", "Cf-Access-Jwt-Assertion",
	"X-Amzn-Oidc-Data", "X-Amzn-Oidc-Identity", "X-Ms-Client-Principal", "Tailscale-User-Login", "X-Vault-Token", "X-Gitlab-Token",
	"X-Shopify-Access-Token", "Ocp-Apim-Subscription-Key", "X-Goog-Api-Key", "X-Jwt-Assertion", "Dpop", "X-Tenant-Id", "X-Xsrf-Token",
	"X-Webauth-User", "X-Authentik-Username", "X-Consumer-Id", "X-Credential-Identifier", "X-Authenticated-Userid", "Sudo",
	"X-Hasura-Role", "From", "Accesskey", "X-Username",
}

func TestIdentityHeadersAreCredentials(t *testing.T) {
	for _, forward := range [][]string{nil, {middleware.AllHeaders}} {
		for _, name := range identityHeaders {
			t.Run(fmt.Sprint(name, forward), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFront(t, middleware.Options{TTL: time.Minute, Forward: forward}, func(w http.ResponseWriter, r *http.Request) {
						if r.Header.Get(name) == "" {
							http.Error(w, "log in", http.StatusUnauthorized)
							return
						}
						fmt.Fprint(w, "for ", r.Header.Get(name))
					})
					f.is(f.ask("/"), 401, "log in\n")
					for range 3 {
						f.is(f.ask("/", name+": alice"), 200, "for alice")
						f.is(f.ask("/", name+": bob"), 200, "for bob")
					}
				})
			})
		}
	}
}

// Headers that browsers, proxies and tools add to all requests leave them shareable.
func TestHeadersOfAllRequestsAreNoCredentials(t *testing.T) {
	for _, name := range []string{
		"User-Agent", "Sec-Fetch-User", "Sec-Ch-Ua", "True-Client-Ip", "X-Client-Ip", "X-Forwarded-For", "X-Azure-Clientip", "X-Client-Version",
		"Traceparent", "X-Request-Id", "X-Ms-Client-Request-Id", "Referer", "Origin", "Dnt", "Priority", "Upgrade-Insecure-Requests", "X-Forwarded-Proto",
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFront(t, middleware.Options{TTL: time.Minute}, number())
			f.ask("/", name+": a")
			if f.ask("/", name+": b"); f.runs.Load() != 1 {
				t.Errorf("%s: %d runs", name, f.runs.Load())
			}
		})
	}
}

func TestForwardedHeaderIsNoCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Minute, Forward: []string{"X-Client-Id"}}, number())
		f.ask("/", "X-Client-Id: a")
		f.is(f.ask("/", "X-Client-Id: b"), 200, "run 1")
	})
}

type userKey struct{}

// An outer layer may put the user into the context: of the connection, before any handler.
func TestValuesOfContextsDoNotReachSharedRuns(t *testing.T) {
	for _, c := range []struct {
		named  []any
		header string
		want   string
	}{
		{nil, "X-Color: red", "<nil>"},
		{[]any{userKey{}}, "X-Color: red", "alice"},
		{nil, "Authorization: alice", "alice"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFront(t, middleware.Options{TTL: time.Minute, Context: c.named}, func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithCancel(r.Context())
				cancel()
				<-ctx.Done()
				fmt.Fprintf(w, "%v%v", ctx.Value(userKey{}), r.Context().Value(http.ServerContextKey) != nil)
			})
			ctx := context.WithValue(t.Context(), userKey{}, "alice")
			f.is(f.send(context.WithValue(ctx, http.ServerContextKey, "server"), "/", c.header), 200, c.want+"true")
			synctest.Wait()
		})
	}
}

func TestRequestAloneHasItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private")
			fmt.Fprint(w, r.Context().Value(userKey{}))
		})
		f.ask("/")
		f.is(f.send(context.WithValue(t.Context(), userKey{}, "alice"), "/"), 200, "alice")
	})
}

func TestServerNameOfALeaderIsNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.TLS.ServerName, r.TLS.HandshakeComplete)
		})
		f.is(f.overTLS("evil.example", "/", "Host: good.example:8443"), 200, "good.exampletrue")
	})
}

// Trace headers reach the run of their request, and neither they nor their echo reach others.
func TestTraceStaysWithItsRequest(t *testing.T) {
	for _, forward := range [][]string{nil, {middleware.AllHeaders}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFront(t, middleware.Options{Forward: forward}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				for _, name := range []string{"X-Request-Id", "Traceparent"} {
					w.Header().Set(name, r.Header.Get(name))
				}
				w.Header().Set("Traceresponse", "00-a-b-01")
			})
			const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
			w := f.ask("/", "X-Request-Id: alices-1", "Traceparent: "+trace)
			if w.Header().Get("X-Request-Id") != "alices-1" || w.Header().Get("Traceparent") != trace {
				t.Errorf("of its own run: %v", w.Header())
			}
			w = f.ask("/", "X-Request-Id: bobs-1")
			for _, name := range []string{"X-Request-Id", "Traceparent", "Traceresponse"} {
				if got := w.Header().Get(name); got != "" {
					t.Errorf("another client gets %s: %q", name, got)
				}
			}
			if f.runs.Load() != 1 {
				t.Errorf("%d runs", f.runs.Load())
			}
		})
	}
}

func TestTraceThatIsMarkupReachesNoSharedRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Header.Get("X-Request-Id"))
		})
		f.is(f.ask("/", "X-Request-Id: <script>"), 200, "")
		f.is(f.ask("/long", "X-Request-Id: "+strings.Repeat("a", 600)), 200, "")
	})
}

// A run without the client's cookies answers the client only if its response can be shared.
func TestPrivateAnswerIsNeverTheStrippedRuns(t *testing.T) {
	session := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if _, err := r.Cookie("session"); err != nil {
				http.SetCookie(w, &http.Cookie{Name: "session", Value: "new"})
			}
			next(w, r)
		}
	}
	account := func(w http.ResponseWriter, r *http.Request) {
		c, err := r.Cookie("session")
		if err != nil {
			http.Redirect(w, r, "/login", http.StatusFound)
			return
		}
		fmt.Fprint(w, "account of ", c.Value)
	}
	forbidden := func(w http.ResponseWriter, r *http.Request) {
		if _, err := r.Cookie("session"); err != nil {
			http.Error(w, "log in", http.StatusForbidden)
			return
		}
		account(w, r)
	}
	for name, h := range map[string]http.HandlerFunc{
		"private":         saying(account, "Cache-Control: private"),
		"private, lives":  saying(account, "Cache-Control: private, max-age=60"),
		"no-store":        saying(account, "Cache-Control: no-store"),
		"login":           account,
		"forbidden":       forbidden,
		"session":         session(account),
		"session, public": session(saying(account, "Cache-Control: private")),
	} {
		for _, o := range []middleware.Options{
			{Cookies: []string{}},
			{Cookies: []string{"theme"}},
			{Cookies: []string{}, TTL: time.Minute, Stale: time.Minute},
			{Cookies: []string{}, Forward: []string{middleware.AllHeaders}},
			{Rules: []middleware.Rule{{Pattern: "/", Cookies: []string{}}}},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFront(t, o, h)
					for range 3 {
						for _, user := range []string{"alice", "bob"} {
							w := f.ask("/account", "Cookie: theme=dark; session="+user)
							if f.is(w, 200, "account of "+user); w.Header().Get("Set-Cookie") != "" {
								t.Errorf("%s gets a session: %v", user, w.Header())
							}
						}
						time.Sleep(3 * time.Minute) // the mark ends
					}
					f.all(f.herd(10, "/account", "Cookie: session=alice"), 10, "200 account of alice")
				})
			})
		}
	}
}

// The response of a stripped run may name its cookie as one that is not stored.
func TestCookieOfAStrippedRunReachesNoClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{Cookies: []string{}}, saying(number(), `Cache-Control: public, max-age=60, no-cache="Set-Cookie"`, "Set-Cookie: session=new"))
		for _, who := range []string{"Cookie: session=alice", "Cookie: session=bob"} {
			if w := f.ask("/", who); w.Header().Get("Set-Cookie") != "" || w.Body.String() != "run 1" {
				t.Errorf("%s: %q %v", who, w.Body, w.Header())
			}
		}
	})
}

// With Headers or Key, public pages are shared across cookies as without.
func TestPublicPageIsSharedAcrossCookies(t *testing.T) {
	tenant := func(r *http.Request) string { return r.Host }
	for name, o := range map[string]middleware.Options{
		"plain": {}, "headers": {Headers: []string{"X-Color"}}, "key": {Key: tenant},
		"rule": {Rules: []middleware.Rule{{Pattern: "/", Headers: []string{"X-Color"}, Key: tenant}}},
	} {
		for _, header := range []string{"Cookie", "Authorization", "X-Api-Key"} {
			t.Run(name+", "+header, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFront(t, o, saying(number(), "Cache-Control: public, max-age=60"))
					for i := range 5 {
						f.is(f.ask("/", fmt.Sprint(header, ": session=", i)), 200, "run 1")
					}
				})
			})
		}
	}
}

func TestRuleHasItsOwnKeyParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Minute, Rules: []middleware.Rule{
			{Pattern: "/shop/", TTL: time.Minute, Cookies: []string{"currency"}, Headers: []string{"X-Color"}},
		}}, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Header.Get("Cookie"), r.Header.Get("X-Color"))
		})
		for range 2 {
			f.is(f.ask("/shop/", "Cookie: currency=eur; id=1", "X-Color: red"), 200, "currency=eurred")
			f.is(f.ask("/shop/", "Cookie: currency=usd; id=2", "X-Color: red"), 200, "currency=usdred")
			f.is(f.ask("/", "X-Color: red"), 200, "")
		}
		if f.runs.Load() != 3 {
			t.Errorf("%d runs", f.runs.Load())
		}
		if err := f.m.Purge(t.Context(), "http://site.example/shop/"); err != nil {
			t.Fatal(err)
		}
		if err := f.m.Purge(t.Context(), "http://site.example/"); err != nil {
			t.Fatal(err)
		}
		f.ask("/shop/", "Cookie: currency=eur; id=1", "X-Color: red")
		if f.ask("/"); f.runs.Load() != 5 {
			t.Errorf("%d runs, want 5: the purges", f.runs.Load())
		}
	})
}

func TestOperationalPathsBypass(t *testing.T) {
	for path, shared := range map[string]bool{
		"/metrics": false, "/healthz": false, "/livez": false, "/readyz": false, "/debug/pprof/heap": false, "/debug/vars": false,
		"/metrics/of/sales": true, "/healthy-food": true, "/ready": true,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFront(t, middleware.Options{TTL: time.Minute, Host: "site.example"}, number())
			f.ask(path)
			if f.ask(path); (f.runs.Load() == 1) != shared {
				t.Errorf("%s: %d runs", path, f.runs.Load())
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{Rules: []middleware.Rule{{Pattern: "/metrics", TTL: time.Minute}}}, number())
		f.ask("/metrics")
		f.is(f.ask("/metrics"), 200, "run 1")
	})
}

func TestSpellingOfAHostDoesNotPickTheRule(t *testing.T) {
	for _, host := range []string{"ADMIN.example", "admin.example:80", "admin.example.", "Admin.Example.:80"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFront(t, middleware.Options{TTL: time.Minute, Rules: []middleware.Rule{
				{Pattern: "admin.example/", Bypass: true},
				{Match: func(r *http.Request) bool { return r.Host == "other.example" }, Bypass: true},
			}}, number())
			f.ask("/", "Host: "+host)
			if f.ask("/", "Host: "+host); f.runs.Load() != 2 {
				t.Errorf("%s: %d runs", host, f.runs.Load())
			}
			f.ask("/", "Host: Other.example")
			if f.ask("/", "Host: Other.example"); f.runs.Load() != 4 {
				t.Errorf("a Match sees another host")
			}
		})
	}
}

func TestUpgradeNeedsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Minute}, number())
		f.ask("/")
		f.is(f.ask("/", "Upgrade: x"), 200, "run 1")
		f.is(f.ask("/", "Upgrade: x", "Connection: keep-alive, upgrade"), 200, "run 2")
	})
}

// A client that accepts no encoding can read the page, though the handler forgot Vary.
func TestEncodedResponseImpliesVary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				w.Header().Set("Content-Encoding", "gzip")
			}
			fmt.Fprint(w, "encoding ", r.Header.Get("Accept-Encoding"))
		})
		for range 2 {
			f.is(f.ask("/", "Accept-Encoding: gzip"), 200, "encoding gzip")
			f.is(f.ask("/"), 200, "encoding ")
		}
	})
}

func TestValidatedEncodedResponseIsStillShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=1")
			w.Header().Set("ETag", `"v"`)
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, "page")
		})
		for range 3 {
			for range 2 {
				f.is(f.ask("/", "Accept-Encoding: gzip"), 200, "page")
			}
			time.Sleep(1100 * time.Millisecond)
		}
		if n := f.runs.Load(); n != 3 {
			t.Errorf("%d runs", n)
		}
	})
}
