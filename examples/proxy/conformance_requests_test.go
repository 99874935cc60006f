package main

import (
	"fmt"
	"testing"
	"time"
)

func TestConformanceVary(t *testing.T) {
	fresh := "Cache-Control: max-age=3600"
	vary := func(name, field string, first, second []string, again outcome) story {
		h := []string{fresh, "Vary: " + field}
		return story{name, []step{{header: h, send: first, want: origin}, {header: h, send: second, want: again}}}
	}
	a := func(lines ...string) []string { return lines }
	foo := []string{fresh, "Vary: Foo"}
	stories := []story{
		vary("match", "Foo", a("Foo: 1"), a("Foo: 1"), cached),
		vary("no match", "Foo", a("Foo: 1"), a("Foo: 2"), origin),
		vary("absent matches absent", "Foo", nil, nil, cached),
		vary("absent, then there", "Foo", nil, a("Foo: 1"), origin),
		vary("there, then absent", "Foo", a("Foo: 1"), nil, origin),
		vary("others don't matter", "Foo", a("Foo: 1", "Other: 2"), a("Foo: 1", "Other: 3"), cached),
		vary("names in any case", "fOO", a("Foo: 1"), a("FOO: 2"), origin),
		vary("two names, match", "Foo, Bar", a("Foo: 1", "Bar: 2"), a("Foo: 1", "Bar: 2"), cached),
		vary("two names, one doesn't", "Foo, Bar", a("Foo: 1", "Bar: 2"), a("Foo: 1", "Bar: 3"), origin),
		vary("two names, one absent", "Foo, Bar", a("Foo: 1", "Bar: 2"), a("Foo: 1"), origin),
		vary("*", "*", a("Foo: 1"), a("Foo: 1"), origin),
		vary("*, and a name", "Foo, *", a("Foo: 1"), a("Foo: 1"), origin),
		vary("*, before a name", "*, Foo", a("Foo: 1"), a("Foo: 1"), origin),
		vary("empty elements", ", ,Foo,", a("Foo: 1"), a("Foo: 2"), origin),
		vary("empty elements, match", ", ,Foo,", a("Foo: 1"), a("Foo: 1"), cached),
		vary("an empty Vary", "", a("Foo: 1"), a("Foo: 2"), cached),
		vary("white space in a list", "Accept-Language", a("Accept-Language: en, de"), a("Accept-Language: en,de"), cached),
		vary("lines of a list", "Accept-Language", a("Accept-Language: en", "Accept-Language: de"), a("Accept-Language: en, de"), cached),
		vary("order of a list", "Accept-Language", a("Accept-Language: en, de"), a("Accept-Language: de, en"), origin),
		vary("case of a language", "Accept-Language", a("Accept-Language: en"), a("Accept-Language: EN"), cached),
		vary("weights of languages", "Accept-Language", a("Accept-Language: fr;q=0.50, de-de;q=1.0"), a("Accept-Language: de-DE,fr;q=0.5"), cached),
		{"Content-Language selects nothing: the upstream chooses", []step{
			{header: []string{fresh, "Vary: Accept-Language", "Content-Language: de"}, send: a("Accept-Language: en, de"), want: origin},
			{
				header: []string{fresh, "Vary: Accept-Language", "Content-Language: de"}, send: a("Accept-Language: fr;q=0.5, de"), want: origin,
				asked: a("Accept-Language: de,fr;q=0.5"),
			},
		}},
		vary("white space in an unknown field", "Foo", a("Foo: 1,2"), a("Foo:  1, 2 "), cached),
		vary("lines of an unknown list", "Foo", a("Foo: 1", "Foo: 2"), a("Foo: 1, 2"), cached),
		vary("white space in text", "Foo", a("Foo: a b,c"), a("Foo: a b, c"), origin),
		vary("Accept-Encoding", "Accept-Encoding", a("Accept-Encoding: gzip"), a("Accept-Encoding: br"), origin),
		vary("lines of an unknown field", "Foo", a("Foo: 1", "Foo: 2"), a("Foo: 2", "Foo: 1"), origin),
		vary("Cookie", "Cookie", a("Cookie: a=1"), a("Cookie: a=2"), origin),
		vary("Origin", "Origin", a("Origin: http://a"), a("Origin: http://b"), origin),
		vary("User-Agent", "User-Agent", a("User-Agent: a"), a("User-Agent: b"), origin),
		{"Vary on two lines", []step{
			{header: a(fresh, "Vary: Foo", "Vary: Bar"), send: a("Foo: 1", "Bar: 2"), want: origin},
			{header: a(fresh, "Vary: Foo", "Vary: Bar"), send: a("Foo: 1", "Bar: 3"), want: origin},
		}},
		{"* on another line", []step{
			{header: a(fresh, "Vary: Foo", "Vary: *"), send: a("Foo: 1"), want: origin},
			{header: a(fresh, "Vary: Foo", "Vary: *"), send: a("Foo: 1"), want: origin},
		}},
		{"two variants are kept", []step{
			{header: foo, send: a("Foo: 1"), want: origin},
			{header: foo, send: a("Foo: 2"), want: origin},
			{header: foo, send: a("Foo: 1"), want: cached, wantBody: "answer 1"},
			{header: foo, send: a("Foo: 2"), want: cached, wantBody: "answer 2"},
		}},
		{"three variants, and one that varies on more", []step{
			{header: foo, send: a("Foo: 1", "Bar: 1"), want: origin},
			{header: []string{fresh, "Vary: Foo, Bar"}, send: a("Foo: 2", "Bar: 1"), want: origin},
			{header: []string{fresh, "Vary: Foo, Bar"}, send: a("Foo: 2", "Bar: 2"), want: origin},
			{header: []string{fresh, "Vary: Foo, Bar"}, send: a("Foo: 2", "Bar: 3"), want: origin},
		}},
	}
	tell(t, stories)
}

// With -trust-origin the rules of credentials are those of RFC 9111 (3.5).
func TestConformanceTrustOrigin(t *testing.T) {
	fresh := "Cache-Control: max-age=3600"
	a := func(lines ...string) []string { return lines }
	who, cookie := a("Authorization: Bearer x"), a("Cookie: a=1")
	first := func(name string, header, send, next []string, again outcome) story {
		return story{name, []step{{header: header, send: send, want: origin}, {header: header, send: next, want: again}}}
	}
	public, must := a("Cache-Control: public, max-age=3600"), a("Cache-Control: max-age=3600, must-revalidate")
	tell(t, []story{
		first("a cookie, then none", a(fresh), cookie, nil, cached),
		first("a cookie, then another", a(fresh), cookie, a("Cookie: a=2"), cached),
		first("another cookie, with Vary", a(fresh, "Vary: Cookie"), cookie, a("Cookie: a=2"), origin),
		first("a cookie, private", a("Cache-Control: private, max-age=3600"), cookie, cookie, origin),
		first("a cookie, no lifetime", a("Last-Modified: "+at(-1000*time.Hour)), cookie, nil, origin),
		first("Authorization alone", a(fresh), who, who, origin),
		first("Authorization, public", public, who, nil, cached),
		first("Authorization, s-maxage", a("Cache-Control: s-maxage=3600"), who, nil, cached),
		first("Authorization, must-revalidate", must, who, a("Authorization: Bearer y"), cached),
		first("Authorization, private", a("Cache-Control: private, max-age=3600"), who, nil, origin),
		first("none, then Authorization", a(fresh), nil, who, cached),
	}, "-trust-origin")
}

func TestConformanceRequests(t *testing.T) {
	fresh := "Cache-Control: max-age=3600"
	asks := func(name string, again outcome, send string, header ...string) story {
		if len(header) == 0 {
			header = []string{fresh, "Age: 100"}
		}
		return story{name, []step{{header: header, want: origin}, {header: header, send: []string{send}, want: again}}}
	}
	auth := func(name string, again outcome, header string) story {
		send := []string{"Authorization: Bearer x"}
		return story{"Authorization, " + name, []step{{header: []string{header}, send: send, want: origin}, {header: []string{header}, send: send, want: again}}}
	}
	none := []string{"Cache-Control: only-if-cached"}
	stories := []story{
		asks("max-age=0", origin, "Cache-Control: max-age=0"),
		asks("max-age below the age", origin, "Cache-Control: max-age=50"),
		asks("max-age above the age", cached, "Cache-Control: max-age=500"),
		asks("max-age twice", origin, "Cache-Control: max-age=500, max-age=50"),
		asks("min-fresh above what is left", origin, "Cache-Control: min-fresh=3550"),
		asks("min-fresh below what is left", cached, "Cache-Control: min-fresh=100"),
		asks("max-stale of what is stale", either, "Cache-Control: max-stale=1000", "Cache-Control: max-age=3600", "Age: 3700", `ETag: "a"`),
		asks("max-stale without an argument", either, "Cache-Control: max-stale", "Cache-Control: max-age=3600", "Age: 3700", `ETag: "a"`),
		asks("max-stale too small", origin, "Cache-Control: max-stale=10", "Cache-Control: max-age=3600", "Age: 3700", `ETag: "a"`),
		asks("max-stale of what must be validated", origin, "Cache-Control: max-stale=1000", "Cache-Control: max-age=3600, must-revalidate", "Age: 3700", `ETag: "a"`),
		asks("no-cache", origin, "Cache-Control: no-cache"),
		asks("Pragma: no-cache", origin, "Pragma: no-cache"),
		{"no-store is answered from what is there", []step{
			{header: []string{fresh}, want: origin},
			{want: cached}, // it is stored by now, too
			{send: []string{"Cache-Control: no-store"}, want: cached},
		}},
		{"only-if-cached of what is", []step{
			{header: []string{fresh}, want: origin}, {want: cached}, {send: none, want: cached},
		}},
		{"Pragma beside Cache-Control counts for nothing", []step{
			{header: []string{fresh}, want: origin},
			{send: []string{"Pragma: no-cache", "Cache-Control: max-age=1000"}, want: cached},
		}},
		{"only-if-cached of what isn't", []step{{send: none, want: cached, wantStatus: 504, wantBody: "This is not stored, and nothing else was asked for.\n"}}},
		{"no-store isn't stored", []step{
			{header: []string{fresh}, send: []string{"Cache-Control: no-store"}, want: origin},
			{header: []string{fresh}, want: origin},
			{want: cached},
		}},
		{"no-cache brings what is stored", []step{
			{header: []string{fresh}, want: origin},
			{header: []string{fresh}, send: []string{"Cache-Control: no-cache"}, want: origin},
			{want: cached, until: "answer 2"},
		}},

		auth("alone", origin, fresh),
		auth("public", cached, "Cache-Control: public, max-age=3600"),
		auth("s-maxage", cached, "Cache-Control: s-maxage=3600"),
		auth("must-revalidate", origin, "Cache-Control: max-age=3600, must-revalidate"),
		auth("private", origin, "Cache-Control: private, max-age=3600"),
		auth("no-store", origin, "Cache-Control: no-store"),
		{"anonymous pages answer no request with Authorization", []step{
			{header: []string{fresh}, want: origin},
			{header: []string{fresh}, send: []string{"Authorization: Bearer x"}, want: origin},
			{want: cached, wantBody: "answer 1"},
		}},

		twice("Set-Cookie", origin, fresh, "Set-Cookie: a=1"),
		twice("Set-Cookie, public", origin, "Cache-Control: public, max-age=3600", "Set-Cookie: a=1"),
		twice("no-cache=Set-Cookie is stored without", cached, `Cache-Control: max-age=3600, no-cache="Set-Cookie"`, "Set-Cookie: a=1"),

		{"other queries are other pages", []step{
			{path: "?a=1", header: []string{fresh}, want: origin},
			{path: "?a=2", header: []string{fresh}, want: origin},
			{path: "?a=1", want: cached, wantBody: "answer 1"},
			{path: "?a=1&a=2", header: []string{fresh}, want: origin},
			{path: "?a=2&a=1", header: []string{fresh}, want: origin},
			{path: "?A=1", header: []string{fresh}, want: origin},
			{path: "?a=1;a=2", header: []string{fresh}, want: origin, wantURI: "?a=1;a=2"},
			{path: "?a=%zz&b;", header: []string{fresh}, want: origin, wantURI: "?a=%zz&b;"},
			{path: "", header: []string{fresh}, want: origin},
			{path: "?", want: either},
		}},
		{"other hosts are other pages", []step{
			{header: []string{fresh}, send: []string{"Host: a.example"}, want: origin},
			{header: []string{fresh}, send: []string{"Host: b.example"}, want: origin},
			{header: []string{fresh}, send: []string{"Host: a.example:81"}, want: origin},
			{send: []string{"Host: A.example"}, want: cached, wantBody: "answer 1"},
			{send: []string{"Host: a.example:80"}, want: cached, wantBody: "answer 1"},
		}},
		{"other paths are other pages", []step{
			{path: "a/b", header: []string{fresh}, want: origin},
			{path: "a%2Fb", header: []string{fresh}, want: origin},
			{path: "a//b", header: []string{fresh}, want: origin},
			{path: "A/b", header: []string{fresh}, want: origin},
			{path: "c/../a/b", header: []string{fresh}, want: origin},
			{path: "a/./b", header: []string{fresh}, want: origin},
			{path: "a/b/", header: []string{fresh}, want: origin},
			{path: "a/b%3Fx=1", header: []string{fresh}, want: origin},
			{path: "a/b%23", header: []string{fresh}, want: origin},
			{path: "a/b%00", header: []string{fresh}, want: origin},
			{path: "a/b", want: cached, wantBody: "answer 1"},
		}},
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "M-SEARCH"} {
		for _, status := range []int{200, 201, 204, 302, 404, 500} {
			again, by := cached, step{method: method, status: status, want: origin}
			if status < 400 {
				again = origin
			}
			stories = append(stories, story{fmt.Sprint(method, " ", status), []step{
				{header: []string{fresh}, want: origin}, by, {header: []string{fresh}, want: again, wantBody: map[bool]string{true: "answer 1"}[again == cached]},
			}})
		}
	}
	for _, method := range []string{"OPTIONS", "HEAD", "TRACE"} {
		stories = append(stories, story{method + " invalidates nothing", []step{
			{header: []string{fresh}, want: origin}, {want: cached}, {method: method, header: []string{fresh}, want: either}, {want: cached, wantBody: "answer 1"},
		}})
	}
	for _, field := range []string{"Location", "Content-Location"} {
		stories = append(stories, story{"POST with " + field, []step{
			{path: "/a", header: []string{fresh}, want: origin},
			{path: "/c", header: []string{fresh}, want: origin},
			{path: "/b", method: "POST", header: []string{field + ": a"}, want: origin},
			{path: "/a", header: []string{fresh}, want: origin, wantBody: "answer 4"},
			{path: "/c", want: cached, wantBody: "answer 2"},
		}}, story{"POST with " + field + " of another host", []step{
			{path: "/a", header: []string{fresh}, send: []string{"Host: a.example"}, want: origin},
			{path: "/b", method: "POST", send: []string{"Host: b.example"}, header: []string{field + ": http://a.example/a"}, want: origin},
			{path: "/a", send: []string{"Host: a.example"}, want: cached, wantBody: "answer 1"},
		}})
	}
	stories = append(stories,
		story{"a client names in Connection what a response varies on", []step{
			{header: []string{fresh, "Vary: Foo"}, send: []string{"Foo: 1", "Connection: foo"}, want: origin, asked: []string{"Foo:"}},
			{header: []string{fresh, "Vary: Foo"}, send: []string{"Foo: 1"}, want: origin, asked: []string{"Foo: 1"}},
			{send: []string{"Foo: 1", "Connection: close, FOO"}, want: cached, wantBody: "answer 1"},
		}},
		story{"Max-Forwards", []step{
			{method: "OPTIONS", send: []string{"Max-Forwards: 3"}, want: origin, asked: []string{"Max-Forwards: 2"}},
			{method: "OPTIONS", send: []string{"Max-Forwards: 0"}, want: cached, wantStatus: 204},
			{method: "TRACE", send: []string{"Max-Forwards: 0", "Cookie: a=b", "X-A: 1"}, want: either, wantHeader: []string{"Content-Type: message/http"}},
			{method: "OPTIONS", send: []string{"Max-Forwards: many"}, want: origin, asked: []string{"Max-Forwards: many"}},
			{send: []string{"Max-Forwards: 0"}, header: []string{fresh}, want: origin, asked: []string{"Max-Forwards: 0"}},
		}},
		story{"a response to POST isn't a page", []step{
			{method: "POST", header: []string{fresh}, want: origin},
			{header: []string{fresh}, want: origin},
		}},
		story{"a response to POST that is the content of its URL is one", []step{
			{path: "/a", method: "POST", header: []string{"Cache-Control: public, max-age=3600", "Content-Location: a"}, want: origin},
			{path: "/a", want: cached, wantBody: "answer 1"},
			{path: "/a", method: "HEAD", want: cached},
			{path: "/a", method: "POST", want: origin},
		}},
		story{"a method by another name changes nothing", []step{
			{header: []string{fresh}, want: origin},
			{send: []string{"X-HTTP-Method-Override: DELETE"}, want: cached},
			{send: []string{"X-Forwarded-Host: evil.example"}, want: cached},
			{send: []string{"X-Original-URL: /evil"}, want: cached},
		}},
		story{"HEAD from GET", []step{
			{header: []string{fresh, "X-A: b"}, want: origin},
			{want: cached},
			{method: "HEAD", want: cached, wantHeader: []string{"X-A: b", "Content-Length: 8", "Age: *"}},
		}},
		story{"HEAD is answered by a run of GET", []step{
			{method: "HEAD", header: []string{fresh}, want: origin},
			{method: "HEAD", want: cached},
		}},
		story{"HEAD of a 404", []step{
			{status: 404, header: []string{fresh}, want: origin},
			{want: cached, wantStatus: 404},
			{method: "HEAD", want: cached, wantStatus: 404},
		}},
	)
	tell(t, stories)
}
