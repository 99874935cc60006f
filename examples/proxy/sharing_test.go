package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A client with credentials never gets the response to another client, by any detour,
// unless the upstream says that the response is for all.
func TestRequestsSeeNoResponseOfAnotherUser(t *testing.T) {
	identities := map[string]func(who string) string{
		"Authorization": func(who string) string { return "Bearer " + who },
		"Cookie":        func(who string) string { return "session=" + who },
		"X-Api-Key":     func(who string) string { return who },
		"X-Auth-Token":  func(who string) string { return who },
	}
	for name, value := range identities {
		for kind, controls := range map[string]string{
			"fresh": "max-age=60", "stale": "max-age=60, stale-while-revalidate=600, stale-if-error=600", "unsaid": "",
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				addr := start(t, func(w http.ResponseWriter, r *http.Request) {
					who := r.Header.Get(name)
					if controls != "" {
						w.Header().Set("Cache-Control", controls)
					}
					if kind == "stale" {
						w.Header().Set("Age", "120")
					}
					w.Header().Set("ETag", `"same"`)
					w.Header().Set("X-Who", who)
					switch {
					case r.URL.Query().Get("vary") != "":
						w.Header().Set("Vary", "Accept-Encoding")
					case r.Header.Get("If-None-Match") == `"same"`:
						w.WriteHeader(304)
						return
					}
					fmt.Fprintf(w, "for %s, %s", who, strings.Repeat("x", 2000))
				})
				var wg sync.WaitGroup
				for i := range 8 {
					who := fmt.Sprint("user", i)
					wg.Go(func() {
						for j := range 40 {
							req, _ := http.NewRequestWithContext(t.Context(), []string{"GET", "GET", "HEAD"}[j%3], "http://"+addr+"/"+[]string{"", "?vary=1"}[j%2], nil)
							if i > 0 { // user 0 says nothing
								req.Header.Set(name, value(who))
							}
							switch j % 5 {
							case 1:
								req.Header.Set("Range", "bytes=0-30")
							case 2:
								req.Header.Set("If-None-Match", `"other"`)
							case 3:
								req.Header.Set("Cache-Control", "max-stale")
							}
							resp, err := http.DefaultClient.Do(req)
							if err != nil {
								t.Error(err)
								return
							}
							body, _ := io.ReadAll(resp.Body)
							resp.Body.Close()
							mine := req.Header.Get(name)
							if got := resp.Header.Get("X-Who"); resp.StatusCode < 500 && got != mine {
								t.Errorf("%s %s: %q was sent X-Who %q: %v", req.Method, req.URL, mine, got, resp.Header)
							}
							if len(body) > 0 && resp.StatusCode < 300 && !strings.HasPrefix(string(body), "for "+mine+", ") {
								t.Errorf("%s %s: %q was sent %.40q: %v", req.Method, req.URL, mine, body, resp.Header)
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// Requests of an attacker: none may poison the responses to others, or leave bytes on
// the connection for the next request.
func TestOddRequestsPoisonNothing(t *testing.T) {
	addr := start(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintf(w, "%s %s%s xfh=%s body=%q", r.Method, r.Host, r.RequestURI, r.Header.Get("X-Forwarded-Host"), body)
	})
	for name, text := range map[string]string{
		"absolute target of another host":    "GET http://good.example/%s HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"two Host lines":                     "GET /%s HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n",
		"X-Forwarded-Host":                   "GET /%s HTTP/1.1\r\nHost: good.example\r\nX-Forwarded-Host: evil.example\r\nX-Forwarded-Proto: https\r\nForwarded: host=evil.example\r\n\r\n",
		"two lengths":                        "GET /%s HTTP/1.1\r\nHost: good.example\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nevil!",
		"length and chunks":                  "GET /%s HTTP/1.1\r\nHost: good.example\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a body of a GET":                    "GET /%s HTTP/1.1\r\nHost: good.example\r\nContent-Length: 5\r\n\r\nevil!",
		"a body of a GET, in chunks":         "GET /%s HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevil!\r\n0\r\n\r\n",
		"a body of a HEAD":                   "HEAD /%s HTTP/1.1\r\nHost: good.example\r\nContent-Length: 5\r\n\r\nevil!",
		"an unknown coding":                  "GET /%s HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: xchunked\r\n\r\nevil!",
		"white space before a colon":         "GET /%s HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding : chunked\r\n\r\n",
		"a port that is the scheme's":        "GET /%s HTTP/1.1\r\nHost: GOOD.example:80\r\n\r\n",
		"a method in lower case":             "get /%s HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"a method override":                  "GET /%s HTTP/1.1\r\nHost: good.example\r\nX-HTTP-Method-Override: POST\r\nX-Original-URL: /evil\r\nX-Rewrite-URL: /evil\r\n\r\n",
		"Expect, and a body":                 "GET /%s HTTP/1.1\r\nHost: good.example\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nevil!",
		"a fragment":                         "GET /%s#evil HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"HTTP/1.0 without a host":            "GET /%s HTTP/1.0\r\n\r\n",
		"a host with a user":                 "GET http://evil@good.example/%s HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"an Upgrade to what isn't":           "GET /%s HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
		"Connection takes away what matters": "GET /%s HTTP/1.1\r\nHost: good.example\r\nConnection: close, X-Forwarded-For, Host\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := strings.ReplaceAll(name, " ", "-")
			conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			fmt.Fprintf(conn, text, path)
			r := bufio.NewReader(conn)
			method, _, _ := strings.Cut(text, " ")
			resp, err := http.ReadResponse(r, &http.Request{Method: method})
			for err == nil && resp.StatusCode == 100 { // ours, and the upstream's if it is quick
				resp, err = http.ReadResponse(r, &http.Request{Method: method})
			}
			if err != nil {
				t.Fatal(err)
			}
			odd, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if !resp.Close { // its remaining bytes must not be another request
				fmt.Fprintf(conn, "GET /next HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n")
				if next, err := http.ReadResponse(r, nil); err == nil {
					b, _ := io.ReadAll(next.Body)
					next.Body.Close()
					if next.StatusCode == 200 && string(b) != `GET good.example/next xfh=good.example body=""` {
						t.Errorf("the next was sent %q", b)
					}
				}
			}
			conn.Close()
			req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+"/"+path, nil)
			req.Host = "good.example"
			for range 2 {
				resp, err = http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				want := fmt.Sprintf(`GET good.example/%s xfh=good.example body=""`, path)
				if got := string(b); got != want {
					t.Errorf("others are sent %q; the odd one %d %q", got, resp.StatusCode, odd)
				}
			}
		})
	}
}
