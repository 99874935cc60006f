package transport_test

import (
	"testing"
	"testing/synctest"

	"github.com/stampedeguard/stampede/middleware/transport"
)

// The cases of the public suite http-tests/cache-tests on parts and POST, by their names. Its
// responses have neither an ETag nor "public", and its part of six bytes has five. Parts without
// a strong validator can't be combined (RFC 9110, 15.3.7.3), and so these have one.
func TestCasesOfThePublicSuite(t *testing.T) {
	for name, c := range map[string]struct{ first, second, want, asked string }{
		"partial-store-partial-reuse-partial":           {"bytes=-5", "bytes=-5", "56789", ""},
		"partial-store-partial-reuse-partial-byterange": {"bytes=-5", "bytes=6-8", "678", ""},
		"partial-store-partial-reuse-partial-absent":    {"bytes=-5", "bytes=6-", "6789", ""},
		"partial-store-partial-reuse-partial-suffix":    {"bytes=-5", "bytes=-1", "9", ""},
		"partial-store-complete-reuse-partial":          {"", "bytes=0-1", "01", ""},
		"partial-store-complete-reuse-partial-no-last":  {"", "bytes=1-", "123456789", ""},
		"partial-store-complete-reuse-partial-suffix":   {"", "bytes=-1", "9", ""},
		"partial-store-partial-complete":                {"bytes=0-4", "", digits, "bytes=5-"},
	} {
		t.Run(name, func(t *testing.T) {
			withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
				r.says = "max-age=3600"
				for _, asked := range []string{c.first, c.second} {
					var header []string
					if asked != "" {
						header = []string{"Range", asked}
					}
					got := ask(t, a, at, header...)
					if asked == c.second && got.body != c.want {
						t.Errorf("got %d %q", got.StatusCode, got.body)
					}
					synctest.Wait() // the response is stored
				}
				if c.asked == "" {
					r.wantLast(t, 1)
				} else {
					r.wantLast(t, 2, "Range", c.asked)
				}
			})
		})
	}
	t.Run("method-POST", func(t *testing.T) {
		withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
			r.says, r.headers = "public, max-age=3600", []string{"Content-Location", "/"}
			wantAnswer(t, askWith(t, a, "POST", at, "Content-Type", "text/plain"), 200, digits)
			wantAnswer(t, ask(t, a, at), 200, digits)
			r.wantLast(t, 1)
		}, storePost)
	})
}
