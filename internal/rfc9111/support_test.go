package rfc9111_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// noon is when every response of these tests arrives.
var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// date is an HTTP date at a distance from noon.
func date(d time.Duration) string { return noon.Add(d).Format(http.TimeFormat) }

// fields makes a header of lines. $n stands for the date n seconds from noon.
func fields(lines string) http.Header {
	h := http.Header{}
	for line := range strings.SplitSeq(lines, "\n") {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		if after, ok := strings.CutPrefix(value, "$"); ok {
			d, err := time.ParseDuration(after)
			if err != nil {
				panic(err)
			}
			value = date(d)
		}
		h.Add(strings.TrimSpace(name), value)
	}
	return h
}

// request makes one of "METHOD url" and lines of fields.
func request(s string) *http.Request {
	first, lines, _ := strings.Cut(s, "\n")
	method, url, _ := strings.Cut(first, " ")
	if method == "" {
		method = http.MethodGet
	}
	if url == "" {
		url = "/"
	}
	r := httptest.NewRequest(method, url, nil)
	for name, values := range fields(lines) {
		r.Header[name] = values
	}
	return r
}

// response makes one that arrived at noon, with status 200 unless its first line
// is another.
func response(s string) *rfc9111.Response {
	r := &rfc9111.Response{Status: 200, RequestTime: noon, ResponseTime: noon}
	if first, rest, _ := strings.Cut(s, "\n"); len(first) == 3 {
		r.Status = 0
		for _, c := range first {
			r.Status = r.Status*10 + int(c-'0')
		}
		s = rest
	}
	r.Header = fields(s)
	return r
}

var shared, private = rfc9111.Options{Shared: true}, rfc9111.Options{}
