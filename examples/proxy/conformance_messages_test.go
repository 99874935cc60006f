package main

import (
	"strings"
	"testing"
)

func TestConformanceHeaders(t *testing.T) {
	l := func(lines ...string) []string { return lines }
	many := l(hour)
	for range 200 {
		many = append(many, "X-Many: "+strings.Repeat("m", 100))
	}
	huge := "X-Huge: " + strings.Repeat("h", 100<<10)
	tell(t, []story{
		{"Age of a hit", []step{{header: l(hour), want: origin}, {want: cached, wantHeader: l("Age: *", "Date: *", "Cache-Control: max-age=3600")}}},
		{"Age adds up", []step{{header: l(hour, "Age: 100"), want: origin, wantHeader: l("Age: 100")}, {want: cached, wantHeader: l("Age: 100")}}},
		{"Date stays", []step{
			{header: l(hour, "Date: Thu, 01 Jan 2026 00:00:00 GMT"), want: origin},
			{want: cached, wantHeader: l("Date: Thu, 01 Jan 2026 00:00:00 GMT")},
		}},
		{"fields of the connection", []step{
			{
				header: l(hour, "Connection: a, B", "Connection: X-C", "A: 1", "B: 2", "X-C: 3", "D: 4", "Keep-Alive: timeout=5", "Proxy-Connection: x"),
				want:   origin, wantHeader: l("A:", "B:", "X-C:", "D: 4", "Keep-Alive:", "Proxy-Connection:"),
			},
			{want: cached, wantHeader: l("A:", "B:", "X-C:", "D: 4", "Keep-Alive:", "Proxy-Connection:")},
		}},
		{"the upstream names Cache-Control in Connection", []step{
			{header: l(hour, "Connection: cache-control"), want: origin},
			{header: l(hour, "Connection: cache-control"), want: origin},
		}},
		{"a client names what it likes in Connection", []step{
			{header: l(hour), send: l("Connection: X-Forwarded-For, Authorization, Via", "Authorization: x"), want: origin, asked: l("Authorization:")},
			{header: l(hour), want: origin},
		}},
		{"what the upstream doesn't say isn't made up", []step{
			{header: l(hour), want: origin, wantHeader: l("Content-Type:", "ETag:", "Last-Modified:", "Expires:")},
			{want: cached, wantHeader: l("Content-Type:", "ETag:", "Last-Modified:", "Expires:")},
		}},
		{"unknown fields", []step{
			{header: l(hour, "Foo: a", "Foo: b", "Bar:", "X-Long: "+strings.Repeat("x", 4000)), want: origin},
			{want: cached, wantHeader: l("Foo: a, b", "X-Long: "+strings.Repeat("x", 4000))},
		}},
		{"many lines", []step{{header: many, want: origin}, {want: cached, wantHeader: l("X-Many: *")}}},
		{"a long line", []step{{header: l(hour, huge), want: origin}, {want: cached, wantHeader: l(huge)}}},
		{"bytes beyond ASCII", []step{
			{header: l(hour, "X-Latin: caf\xe9", "X-UTF: café"), want: origin},
			{want: cached, wantHeader: l("X-Latin: caf\xe9", "X-UTF: café")},
		}},
		{"Content-Encoding goes with its body", []step{
			{header: l(hour, "Content-Encoding: gzip", "Vary: Accept-Encoding"), send: l("Accept-Encoding: gzip"), want: origin},
			{send: l("Accept-Encoding: gzip"), want: cached, wantHeader: l("Content-Encoding: gzip", "Vary: Accept-Encoding")},
		}},
	})
}

// Upstreams of all kinds, by their bytes.
func TestConformanceMessages(t *testing.T) {
	fresh := "Cache-Control: max-age=3600\r\n"
	raw := func(name, text string, again outcome, body string) story {
		return story{name, []step{{raw: text, want: origin, wantBody: body}, {raw: text, want: again, wantBody: body}}}
	}
	broken := func(name, text string) story {
		return story{name, []step{{raw: text, want: either, wantStatus: 502}, {header: []string{hour}, want: either, until: "answer 2"}}}
	}
	untyped := []string{"Content-Type:"}
	hinted := "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n" + fresh + "Content-Length: 5\r\n\r\nwhole"
	tell(t, []story{
		{"what the upstream doesn't say isn't made up after 103", []step{
			{raw: hinted, want: origin, wantBody: "whole", wantHeader: untyped},
			{want: cached, wantBody: "whole", wantHeader: untyped},
		}},
		raw("HTTP/1.0, until the end of the connection", "HTTP/1.0 200 OK\r\n"+fresh+"\r\nwhole", cached, "whole"),
		raw("HTTP/1.0 with a length", "HTTP/1.0 200 OK\r\n"+fresh+"Content-Length: 5\r\n\r\nwhole", cached, "whole"),
		raw("HTTP/1.1, until the end of the connection", "HTTP/1.1 200 OK\r\n"+fresh+"Connection: close\r\n\r\nwhole", cached, "whole"),
		raw("chunks", "HTTP/1.1 200 OK\r\n"+fresh+"Transfer-Encoding: chunked\r\n\r\n2\r\nwh\r\n3\r\nole\r\n0\r\n\r\n", cached, "whole"),
		raw("chunks with extensions", "HTTP/1.1 200 OK\r\n"+fresh+"Transfer-Encoding: chunked\r\n\r\n2;a=b\r\nwh\r\n3\r\nole\r\n0\r\n\r\n", cached, "whole"),
		raw("nothing", "HTTP/1.1 200 OK\r\n"+fresh+"Content-Length: 0\r\n\r\n", cached, ""),
		raw("nothing, in chunks", "HTTP/1.1 200 OK\r\n"+fresh+"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", cached, ""),
		raw("the same length twice", "HTTP/1.1 200 OK\r\n"+fresh+"Content-Length: 5\r\nContent-Length: 5\r\n\r\nwhole", cached, "whole"),
		raw("103 before it", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n"+fresh+"Content-Length: 5\r\n\r\nwhole", cached, "whole"),
		raw("100 before it", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"+fresh+"Content-Length: 5\r\n\r\nwhole", cached, "whole"),
		raw("header lines without white space", "HTTP/1.1 200 OK\r\nCache-Control:max-age=3600\r\nContent-Length:5\r\n\r\nwhole", cached, "whole"),
		raw("folded lines", "HTTP/1.1 200 OK\r\nX-A: a\r\n b\r\n"+fresh+"Content-Length: 5\r\n\r\nwhole", cached, "whole"),
		raw("a folded no-store", "HTTP/1.1 200 OK\r\nCache-Control: max-age=3600,\r\n no-store\r\nContent-Length: 5\r\n\r\nwhole", origin, "whole"),
		broken("no status line", "nonsense\r\n\r\n"),
		broken("nothing at all", "\r\n"),
		broken("a status that is none", "HTTP/1.1 abc\r\n\r\n"),
		broken("lengths that differ", "HTTP/1.1 200 OK\r\n"+fresh+"Content-Length: 5\r\nContent-Length: 6\r\n\r\nwhole"),
		broken("a length that is none", "HTTP/1.1 200 OK\r\n"+fresh+"Content-Length: x\r\n\r\nwhole"),
		broken("a length below zero", "HTTP/1.1 200 OK\r\n"+fresh+"Content-Length: -5\r\n\r\nwhole"),
		broken("a header line without a colon", "HTTP/1.1 200 OK\r\n"+fresh+"nonsense\r\nContent-Length: 5\r\n\r\nwhole"),
		broken("an unknown coding", "HTTP/1.1 200 OK\r\n"+fresh+"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
	})
}
