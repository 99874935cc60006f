package rfc9111_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

func TestStorePosted(t *testing.T) {
	const public = "Cache-Control: public, max-age=60\n"
	for name, c := range map[string]struct {
		req, resp string
		status    int
		shared    rfc9111.Audience // in a shared cache
		private   rfc9111.Audience
	}{
		"path":               {"POST http://a/b", public + "Content-Location: /b", 200, rfc9111.Anyone, rfc9111.Anyone},
		"relative":           {"POST http://a/b/c", public + "Content-Location: c", 200, rfc9111.Anyone, rfc9111.Anyone},
		"absolute":           {"POST http://a/b?x=1", public + "Content-Location: HTTP://A:80/b?x=1", 200, rfc9111.Anyone, rfc9111.Anyone},
		"root":               {"POST http://a", public + "Content-Location: http://a/", 200, rfc9111.Anyone, rfc9111.Anyone},
		"only a lifetime":    {"POST http://a/b", "Cache-Control: max-age=60\nContent-Location: /b", 200, rfc9111.Nobody, rfc9111.Anyone},
		"private":            {"POST http://a/b", "Cache-Control: private, max-age=60\nContent-Location: /b", 200, rfc9111.Nobody, rfc9111.User},
		"https":              {"POST http://a/b", public + "Content-Location: https://a/b", 200, rfc9111.Nobody, rfc9111.Nobody},
		"another path":       {"POST http://a/b", public + "Content-Location: /b/", 200, rfc9111.Nobody, rfc9111.Nobody},
		"an escaped path":    {"POST http://a/b%2Fc", public + "Content-Location: /b/c", 200, rfc9111.Nobody, rfc9111.Nobody},
		"a fragment":         {"POST http://a/b", public + "Content-Location: /b#c", 200, rfc9111.Nobody, rfc9111.Nobody},
		"a user":             {"POST http://a/b", public + "Content-Location: http://u@a/b", 200, rfc9111.Nobody, rfc9111.Nobody},
		"an empty one":       {"POST http://a/b", public + "Content-Location:", 200, rfc9111.Nobody, rfc9111.Nobody},
		"text":               {"POST http://a/b", public + "Content-Location: %zz", 200, rfc9111.Nobody, rfc9111.Nobody},
		"PUT":                {"PUT http://a/b", public + "Content-Location: /b", 200, rfc9111.Nobody, rfc9111.Nobody},
		"201":                {"POST http://a/b", public + "Content-Location: /b", 201, rfc9111.Nobody, rfc9111.Nobody},
		"a guessed lifetime": {"POST http://a/b", "Cache-Control: public\nLast-Modified: Thu, 01 Jan 2015 00:00:00 GMT\nContent-Location: /b", 200, rfc9111.Nobody, rfc9111.Nobody},
		"no-cache":           {"POST http://a/b", "Cache-Control: public, no-cache, max-age=60\nETag: \"a\"\nContent-Location: /b", 200, rfc9111.Nobody, rfc9111.Nobody},
		"Vary":               {"POST http://a/b", public + "Vary: Accept\nContent-Location: /b", 200, rfc9111.Nobody, rfc9111.Nobody},
		"an encoding":        {"POST http://a/b", public + "Content-Encoding: br\nContent-Location: /b", 200, rfc9111.Nobody, rfc9111.Nobody},
		"a request no-store": {"POST http://a/b\nCache-Control: no-store", public + "Content-Location: /b", 200, rfc9111.Nobody, rfc9111.Nobody},
	} {
		t.Run(name, func(t *testing.T) {
			resp := &rfc9111.Response{Status: c.status, Header: fields(c.resp), ResponseTime: time.Now()}
			req := request(c.req)
			for o, want := range map[*rfc9111.Options]rfc9111.Audience{
				{Shared: true, Heuristic: true, Lifetime: time.Hour}: c.shared, {Heuristic: true, Lifetime: time.Hour}: c.private,
			} {
				if d := rfc9111.StorePosted(req, false, resp, *o); d.For != want || d.Once != rfc9111.Nobody || req.Method == http.MethodGet {
					t.Errorf("shared %v: for %v once %v, want %v", o.Shared, d.For, d.Once, want)
				}
			}
		})
	}
}
