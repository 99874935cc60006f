package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	staleNow = "Age: 7200" // beyond a max-age of an hour
	hour     = "Cache-Control: max-age=3600"
)

func TestConformanceConditions(t *testing.T) {
	modified := at(-1000 * time.Hour)
	with := func(name string, stored, send []string, want int, more ...string) story {
		return story{name, []step{
			{header: append([]string{hour}, stored...), want: origin},
			{send: send, want: cached, wantStatus: want, wantHeader: more},
		}}
	}
	l := func(lines ...string) []string { return lines }
	etag := l(`ETag: "a"`)
	tell(t, []story{
		with("If-None-Match", etag, l(`If-None-Match: "a"`), 304, `ETag: "a"`, "Content-Length:", "Content-Type:", "Cache-Control: max-age=3600", "Age: *", "Date: *"),
		with("If-None-Match of another", etag, l(`If-None-Match: "b"`), 200),
		with("If-None-Match, weak", etag, l(`If-None-Match: W/"a"`), 304),
		with("If-None-Match of a weak one", l(`ETag: W/"a"`), l(`If-None-Match: "a"`), 304),
		with("If-None-Match of a list", etag, l(`If-None-Match: "x", "a" , "y"`), 304),
		with("If-None-Match of two lines", etag, l(`If-None-Match: "x"`, `If-None-Match: "a"`), 304),
		with("If-None-Match of a list with commas in it", l(`ETag: "a,b"`), l(`If-None-Match: "x", "a,b"`), 304),
		with("If-None-Match: *", etag, l(`If-None-Match: *`), 304),
		with("If-None-Match without quotes", etag, l(`If-None-Match: a`), 200),
		with("If-None-Match of what has no quotes either", l(`ETag: a`), l(`If-None-Match: "a"`), 200),
		with("If-None-Match with a small w", etag, l(`If-None-Match: w/"a"`), 200),
		with("If-None-Match beyond ASCII", l("ETag: \"abcdef\xfc\""), l("If-None-Match: \"abcdef\xfc\""), 304, "ETag: \"abcdef\xfc\""),
		with("If-None-Match of a weak one with a backslash", l(`ETag: W\"a"`), l(`If-None-Match: W\"a"`), 200),
		with("If-None-Match of a weak one without a slash", l(`ETag: W"a"`), l(`If-None-Match: W"a"`), 200),
		with("If-None-Match of the last of a list", etag, l(`If-None-Match: "x", "y", "a"`), 304),
		with("an empty ETag", l(`ETag: ""`), l(`If-None-Match: ""`), 304),
		with("If-None-Match, without ETag", nil, l(`If-None-Match: "a"`), 200),
		with("If-Modified-Since", l("Last-Modified: "+modified), l("If-Modified-Since: "+modified), 304, "Last-Modified: "+modified),
		with("If-Modified-Since before", l("Last-Modified: "+modified), l("If-Modified-Since: "+at(-2000*time.Hour)), 200),
		with("If-Modified-Since after", l("Last-Modified: "+modified), l("If-Modified-Since: "+at(-10*time.Hour)), 304),
		with("If-Modified-Since of nonsense", l("Last-Modified: "+modified), l("If-Modified-Since: never"), 200),
		with("If-Modified-Since the Date, without Last-Modified", l("Date: "+modified), l("If-Modified-Since: "+modified), 304, "Date: "+modified),
		with("If-Modified-Since after the Date, without Last-Modified", l("Date: "+modified), l("If-Modified-Since: "+at(0)), 304),
		with("If-Modified-Since before the Date, without Last-Modified", l("Date: "+modified), l("If-Modified-Since: "+at(-1001*time.Hour)), 200),
		with("If-Modified-Since between Last-Modified and Date", l("Last-Modified: "+modified), l("If-Modified-Since: "+at(-time.Hour)), 304),
		with("If-None-Match before If-Modified-Since", l(`ETag: "a"`, "Last-Modified: "+modified), l(`If-None-Match: "b"`, "If-Modified-Since: "+modified), 200),
		{"304 from the upstream, to a client without conditions", []step{
			{header: l(hour, staleNow, `ETag: "a"`), want: origin},
			{status: 304, header: l(hour, `ETag: "a"`, "X-New: 1"), want: validated, asked: l(`If-None-Match: "a"`), wantHeader: l("X-New: 1")},
			{want: cached, wantHeader: l("X-New: 1")},
		}},
		{"Last-Modified validates", []step{
			{header: l(hour, staleNow, "Last-Modified: "+modified), want: origin},
			{status: 304, header: l(hour), want: validated, asked: l("If-Modified-Since: " + modified)},
			{want: cached},
		}},
		{"both do", []step{
			{header: l(hour, staleNow, `ETag: "a"`, "Last-Modified: "+modified), want: origin},
			{status: 304, header: l(hour, `ETag: "a"`), want: validated, asked: l(`If-None-Match: "a"`, "If-Modified-Since: "+modified)},
		}},
		{"a weak ETag validates", []step{
			{header: l(hour, staleNow, `ETag: W/"a"`), want: origin},
			{status: 304, header: l(hour, `ETag: W/"a"`), want: validated, asked: l(`If-None-Match: W/"a"`)},
			{want: cached},
		}},
		{"what a stored response varied on goes along with its validation", []step{
			{header: l(hour, staleNow, `ETag: "a"`, "Vary: Abc"), send: l("Abc: 123"), want: origin},
			{status: 304, header: l(hour, `ETag: "a"`, "Vary: Abc"), send: l("Abc: 123"), want: validated, asked: l("Abc: 123", `If-None-Match: "a"`)},
		}},
		{"a variant isn't validated by the ETag of another", []step{
			{header: l(hour, `ETag: "a"`, "Vary: Abc"), send: l("Abc: 123"), want: origin},
			{header: l(hour, `ETag: "b"`, "Vary: Abc"), send: l("Abc: 456"), want: origin, asked: l("If-None-Match:")},
		}},
		{"a precondition of what isn't stored is the upstream's", []step{
			{send: l(`If-Match: "b"`), status: 412, want: origin, asked: l(`If-Match: "b"`)},
			{send: l("If-Unmodified-Since: " + modified), status: 412, want: origin, asked: l("If-Unmodified-Since: " + modified)},
			{header: l(hour, `ETag: "a"`), want: origin},
		}},
		{"no-cache is validated each time", []step{
			{header: l("Cache-Control: no-cache", `ETag: "a"`), want: origin},
			{status: 304, header: l("Cache-Control: no-cache", `ETag: "a"`), want: validated},
			{status: 304, header: l("Cache-Control: no-cache", `ETag: "a"`), want: validated},
			{header: l("Cache-Control: no-cache", `ETag: "b"`), want: origin, asked: l(`If-None-Match: "a"`)},
			{status: 304, header: l("Cache-Control: no-cache", `ETag: "b"`), want: validated, asked: l(`If-None-Match: "b"`)},
		}},
		{"what the client has is no condition for the upstream", []step{
			{header: l(hour, staleNow, `ETag: "a"`), want: origin},
			{status: 304, header: l(hour, `ETag: "a"`), send: l(`If-None-Match: "zz"`), want: validated, asked: l(`If-None-Match: "a"`)},
		}},
		{"a condition makes no 304 of what isn't there", []step{
			{header: l(hour, `ETag: "a"`), send: l(`If-None-Match: "zz"`), want: origin},
			{want: cached},
		}},
		{"a client's condition is answered from what has come", []step{
			{header: l(hour, `ETag: "a"`), send: l(`If-None-Match: "a"`), want: origin, wantStatus: 304, wantHeader: l(`ETag: "a"`)},
			{want: cached, wantBody: "answer 1"},
		}},
		{"validated for a client that has it", []step{
			{header: l(hour, staleNow, `ETag: "a"`), want: origin},
			{status: 304, header: l(hour, `ETag: "a"`), send: l(`If-None-Match: "a"`), want: validated, wantStatus: 304},
		}},
		{"200 instead of 304 replaces", []step{
			{header: l(hour, staleNow, `ETag: "a"`), want: origin},
			{header: l(hour, `ETag: "b"`), want: origin, wantBody: "answer 2"},
			{want: cached, wantBody: "answer 2", wantHeader: l(`ETag: "b"`)},
		}},
		{"a 304 that says no-store", []step{
			{header: l(hour, staleNow, `ETag: "a"`), want: origin},
			{status: 304, header: l("Cache-Control: no-store", `ETag: "a"`), want: validated},
			{header: l(hour), want: origin},
		}},
		{"404 instead of 304", []step{
			{header: l(hour, staleNow, `ETag: "a"`), want: origin},
			{status: 404, header: l("Cache-Control: no-store"), want: origin},
		}},
		{"If-Match that holds", []step{
			{header: l(hour, `ETag: "a"`), want: origin},
			{send: l(`If-Match: "a"`), want: either},
			{send: l(`If-Match: "b"`), status: 412, want: origin, asked: l(`If-Match: "b"`)},
		}},
	})
}

// A 304 updates the stored header, but for the fields that describe the stored body.
func TestConformanceUpdates(t *testing.T) {
	var stories []story
	for name, updates := range map[string]bool{
		"Test-Header": true, "X-Test": true, "Content-Foo": true, "X-Content-Foo": true, "Cache-Tag": true,
		"Content-Type": true, "Content-Language": true, "Content-Location": true, "Content-Security-Policy": true,
		"X-Frame-Options": true, "Set-Cookie2": false, "Clear-Site-Data": true,
		"Content-Encoding": false, "Content-Range": false, "Content-MD5": true, "Public-Key-Pins": true,
		"Connection": false, "Keep-Alive": false, "Proxy-Authenticate": false, "Proxy-Authorization": false, "Te": false, "Upgrade": false,
	} {
		if name == "Set-Cookie2" || name == "Content-Range" || name == "Connection" || name == "Upgrade" {
			continue
		}
		old, now := name+": old", name+": new"
		want := now
		if !updates {
			want = old
			if strings.HasPrefix(name, "Keep") || strings.HasPrefix(name, "Proxy") || name == "Te" {
				want = name + ":"
			}
		}
		stories = append(stories, story{name, []step{
			{header: []string{hour, staleNow, `ETag: "a"`, old}, want: origin},
			{status: 304, header: []string{hour, `ETag: "a"`, now}, want: validated, wantHeader: []string{want}},
			{want: cached, wantHeader: []string{want, `ETag: "a"`}},
		}})
	}
	stories = append(stories,
		story{"a 304 with another length", []step{
			{header: []string{hour, staleNow, `ETag: "a"`}, want: origin},
			{raw: "HTTP/1.1 304 Not Modified\r\nCache-Control: max-age=3600\r\nETag: \"a\"\r\nContent-Length: 1000\r\n\r\n", want: validated, wantHeader: []string{"Content-Length: 8"}},
			{want: cached, wantHeader: []string{"Content-Length: 8"}},
		}},
		story{"HEAD of what is stale", []step{
			{header: []string{hour, staleNow, `ETag: "a"`, "X-A: old"}, want: origin},
			{method: "HEAD", header: []string{hour, `ETag: "a"`, "X-A: new"}, want: origin, asked: []string{"If-None-Match:"}, wantHeader: []string{"X-A: new"}},
			{status: 304, header: []string{hour, `ETag: "a"`, "X-A: new"}, want: validated, wantHeader: []string{"X-A: new"}},
		}},
		story{"the fresh header takes the stored one's place line by line", []step{
			{header: []string{hour, staleNow, `ETag: "a"`, "X-A: 1", "X-A: 2", "X-B: 1"}, want: origin},
			{status: 304, header: []string{hour, `ETag: "a"`, "X-A: 3"}, want: validated, wantHeader: []string{"X-A: 3", "X-B: 1"}},
		}},
	)
	tell(t, stories)
}

func TestConformanceStale(t *testing.T) {
	l := func(lines ...string) []string { return lines }
	swr := "Cache-Control: max-age=3600, stale-while-revalidate=9999"
	sie := "Cache-Control: max-age=3600, stale-if-error=9999"
	stories := []story{
		{"stale-while-revalidate", []step{
			{header: l(swr, staleNow), want: origin},
			{header: l(hour), want: stale, wantHeader: l("Age: *")},
			{want: cached, until: "answer 2"},
		}},
		{"stale-while-revalidate is over", []step{
			{header: l("Cache-Control: max-age=3600, stale-while-revalidate=60", staleNow), want: origin},
			{header: l(hour), want: origin, wantBody: "answer 2"},
		}},
		{"stale-while-revalidate with must-revalidate", []step{
			{header: l(swr+", must-revalidate", staleNow), want: origin},
			{header: l(hour), want: origin, wantBody: "answer 2"},
		}},
		{"stale-while-revalidate with s-maxage", []step{
			{header: l("Cache-Control: s-maxage=3600, stale-while-revalidate=9999", staleNow), want: origin},
			{header: l(hour), want: origin, wantBody: "answer 2"},
		}},
		{"stale-while-revalidate, which a client doesn't want", []step{
			{header: l(swr, staleNow), want: origin},
			{header: l(hour), send: l("Cache-Control: max-age=100"), want: origin, wantBody: "answer 2"},
		}},
		{"an upstream that fails, without stale-if-error", []step{
			{header: l(hour, staleNow, `ETag: "a"`), want: origin},
			{status: 503, want: origin},
		}},
		{"an upstream that is away, without stale-if-error", []step{
			{header: l(hour, staleNow, `ETag: "a"`), want: origin},
			{raw: "\r\n", want: either, wantStatus: 502},
		}},
		{"stale-if-error with must-revalidate", []step{
			{header: l(sie+", must-revalidate", staleNow), want: origin},
			{status: 503, want: origin},
		}},
		{"stale-if-error, and the upstream answers", []step{
			{header: l(sie, staleNow), want: origin},
			{status: 404, want: origin},
		}},
		{"stale-if-error is over", []step{
			{header: l("Cache-Control: max-age=3600, stale-if-error=60", staleNow), want: origin},
			{status: 503, want: origin},
		}},
		{"stale-if-error, upstream is away", []step{
			{header: l(sie, staleNow), want: origin},
			{raw: "\r\n", want: instead},
		}},
		{"stale-if-error, upstream speaks nonsense", []step{
			{header: l(sie, staleNow), want: origin},
			{raw: "what?\r\n\r\n", want: instead},
		}},
	}
	for _, status := range []int{500, 502, 503, 504} {
		stories = append(stories, story{fmt.Sprint("stale-if-error of ", status), []step{
			{header: l(sie, staleNow), want: origin},
			{status: status, want: instead, wantHeader: l("Age: *")},
		}})
	}
	tell(t, stories)
}

// Options stand in for the terms that a response does not state (RFC 9111, 4.2.4).
func TestConformanceStaleByOption(t *testing.T) {
	l := func(lines ...string) []string { return lines }
	old := l(hour, staleNow)
	fails, closes := step{status: 503, want: origin}, step{raw: "\r\n", want: either, wantStatus: 502}
	forbidden := func(directive, when string, failure step) story {
		return story{directive + " forbids stale responses " + when, []step{
			{header: l("Cache-Control: max-age=3600, "+directive, staleNow, `ETag: "a"`), want: origin},
			failure, // a second failure might share the run of the first
		}}
	}
	tell(t, []story{
		{"the upstream fails", []step{
			{header: old, want: origin},
			{status: 503, want: instead, wantHeader: l("Age: *")},
		}},
		{"the upstream closes the connection", []step{
			{header: old, want: origin},
			{raw: "\r\n", want: instead, wantHeader: l("Age: *")},
		}},
		{"the upstream answers", []step{
			{header: old, want: origin},
			{header: l(hour), want: origin, wantBody: "answer 2"},
		}},
		{"the response's own time goes before the option's", []step{
			{header: l("Cache-Control: max-age=3600, stale-if-error=60", staleNow), want: origin},
			{status: 503, want: origin},
		}},
		forbidden("must-revalidate", "of a failure", fails),
		forbidden("must-revalidate", "of a lost connection", closes),
		forbidden("proxy-revalidate", "of a failure", fails),
		forbidden("proxy-revalidate", "of a lost connection", closes),
		forbidden("no-cache", "of a failure", fails),
		forbidden("no-cache", "of a lost connection", closes),
		{"s-maxage forbids stale responses", []step{
			{header: l("Cache-Control: s-maxage=3600", staleNow, `ETag: "a"`), want: origin},
			{status: 503, want: origin},
		}},
	}, "-stale-if-error", "3h")
	tell(t, []story{
		{"a stale response during a refresh", []step{
			{header: old, want: origin},
			{header: l(hour), want: stale, wantHeader: l("Age: *")},
			{want: cached, until: "answer 2"},
		}},
	}, "-stale", "3h")
}

func TestConformanceRanges(t *testing.T) {
	l := func(lines ...string) []string { return lines }
	body := "0123456789"
	from := func(name, ask string, status int, want, contentRange string, more ...string) story {
		return story{name, []step{
			{header: l(hour, `ETag: "a"`), body: body, want: origin},
			{send: append(l("Range: "+ask), more...), want: cached, wantStatus: status, wantBody: want, wantHeader: l("Content-Range: "+contentRange, `ETag: "a"`)},
		}}
	}
	tell(t, []story{
		from("a beginning", "bytes=0-3", 206, "0123", "bytes 0-3/10"),
		from("a middle", "bytes=2-5", 206, "2345", "bytes 2-5/10"),
		from("from a byte on", "bytes=7-", 206, "789", "bytes 7-9/10"),
		from("the last", "bytes=-2", 206, "89", "bytes 8-9/10"),
		from("more than there is", "bytes=5-1000", 206, "56789", "bytes 5-9/10"),
		{"beyond the end", []step{
			{header: l(hour, `ETag: "a"`), body: body, want: origin},
			{send: l("Range: bytes=10-12"), want: cached, wantStatus: 416, wantHeader: l("Content-Range: bytes */10")},
		}},
		from("nonsense", "bytes=x", 200, body, ""),
		from("another unit", "lines=1-2", 200, body, ""),
		from("If-Range that holds", "bytes=0-3", 206, "0123", "bytes 0-3/10", `If-Range: "a"`),
		from("If-Range that doesn't", "bytes=0-3", 200, body, "", `If-Range: "b"`),
		from("If-Range, weak", "bytes=0-3", 200, body, "", `If-Range: W/"a"`),
		{"a range of what isn't stored", []step{
			{send: l("Range: bytes=0-3"), header: l(hour), body: body, want: origin, wantStatus: 206, wantBody: "0123"},
			{want: cached, wantBody: body},
		}},
		{"a range of an empty body", []step{
			{raw: "HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\nContent-Length: 0\r\n\r\n", want: origin},
			{send: l("Range: bytes=0-3"), want: cached, wantHeader: l("Content-Length: 0")}, // as net/http has it
		}},
	})
}
