package middleware_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware"
)

// FuzzShare lets two users ask for a page, one after the other, with any header
// and a response with any header: nothing private or no-store is shared, no cookie
// without the option, no part of a page, and nothing panics. The first request is a POST if its
// header begins with that word.
func FuzzShare(f *testing.F) {
	for _, s := range [][2]string{
		{"", "Cache-Control: max-age=60"},
		{"Cookie: a=b", "Cache-Control: public, max-age=60"},
		{"Authorization: x", "Cache-Control: max-age=60"},
		{"Range: bytes=0-1\nIf-None-Match: \"v\"", "Cache-Control: s-maxage=60\nETag: \"v\"\nSet-Cookie: a=b"},
		{"Cache-Control: no-cache, max-stale", "Cache-Control: private=\"x, set-cookie\", max-age=60\nSet-Cookie: a=b"},
		{"", "Vary: Accept, *\nCache-Control: max-age=9"},
		{"Accept: a", "Vary: Accept\nCache-Control: max-age=9\nTrailer: X"},
		{"", "CDN-Cache-Control: no-store\nCache-Control: max-age=9"},
		{"", "Content-Length: 3\nCache-Control: max-age=9"},
		{"POST\n", "Content-Location: /\nCache-Control: public, max-age=60"},
		{"POST\nCookie: a=b", "Content-Location: http://example.com/\nCache-Control: s-maxage=60\nSet-Cookie: a=b"},
		{"POST\nRange: bytes=0-1", "Content-Location: /\nCache-Control: public, private=\"x\", max-age=60"},
	} {
		f.Add(s[0], s[1], uint16(200))
	}
	f.Add("Range: bytes=0-3", "Content-Range: bytes 0-3/10\nETag: \"v\"\nCache-Control: public, max-age=60", uint16(206))
	f.Add("", "Content-Range: bytes 0-3/10\nCache-Control: public, max-age=60", uint16(200))
	f.Fuzz(func(t *testing.T, request, response string, status uint16) {
		if status < 200 || status > 599 {
			status = 200
		}
		store, err := cache.NewMemory(cache.MemoryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		m, err := middleware.New(store, middleware.Options{TTL: time.Minute, Compress: true, MakeETag: true, StorePost: true})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		runs := 0
		resp := parse(response)
		h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs++
			for name, values := range resp {
				w.Header()[name] = values
			}
			w.WriteHeader(int(status))
			_, _ = w.Write([]byte("page"))
		}))
		ask := func(method string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(method, "/", nil)
			for name, values := range parse(request) {
				r.Header[name] = values
			}
			defer func() {
				if p := recover(); p != nil && p != http.ErrAbortHandler {
					panic(p)
				}
			}()
			h.ServeHTTP(w, r)
			return w
		}
		first := "GET"
		if strings.HasPrefix(request, "POST\n") {
			first = "POST"
		}
		ask(first)
		before := runs
		second := ask("GET")
		if second == nil || runs > before || !strings.Contains(second.Header().Get("Cache-Status"), "hit") {
			return
		}
		said := strings.ToLower(strings.Join(resp["Cache-Control"], ","))
		targeted := len(resp["Cdn-Cache-Control"]) > 0
		if !targeted && !strings.ContainsAny(said, "=\"\\") && (strings.Contains(said, "private") && isWord(said, "private") || isWord(said, "no-store") && !isWord(said, "must-understand")) {
			t.Errorf("shared, though it says %q", said)
		}
		if len(second.Header()["Set-Cookie"]) > 0 {
			t.Errorf("a cookie was shared: %q", response)
		}
		if status == http.StatusPartialContent || len(resp["Content-Range"]) > 0 {
			t.Errorf("a part was shared: %d %q", status, response)
		}
		if first == "POST" && (status != 200 || len(resp["Content-Location"]) != 1 || len(resp["Vary"]) > 0 || !targeted && !strings.Contains(said, "public") && !strings.Contains(said, "s-maxage")) {
			t.Errorf("the response to a POST was shared: %d %q", status, response)
		}
	})
}

// isWord reports whether a list has the word as an element of its own.
func isWord(list, word string) bool {
	for part := range strings.SplitSeq(list, ",") {
		if strings.Trim(part, " \t") == word {
			return true
		}
	}
	return false
}

// parse reads "Name: value" lines; other lines are left out.
func parse(lines string) http.Header {
	h := http.Header{}
	for line := range strings.SplitSeq(lines, "\n") {
		name, value, ok := strings.Cut(line, ":")
		if ok && name != "" && !bytes.ContainsAny([]byte(name), " \t\r\x00") && !strings.ContainsAny(value, "\r\x00") {
			h.Add(name, strings.TrimSpace(value))
		}
	}
	return h
}
