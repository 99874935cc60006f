package main

import (
	"testing"
	"time"
)

func TestConformanceFreshness(t *testing.T) {
	longAgo := "Last-Modified: " + at(-1000*time.Hour)
	tell(t, []story{
		twice("nothing is said", origin),
		twice("a lifetime is guessed", cached, longAgo),
		twice("a lifetime is not guessed of a change just now", origin, "Last-Modified: "+at(0)),
		twice("a stated lifetime goes before a guessed one", origin, longAgo, "Cache-Control: max-age=0"),
		twice("max-age", cached, "Cache-Control: max-age=3600"),
		twice("max-age=0", origin, "Cache-Control: max-age=0"),
		twice("max-age of 2^31-1", cached, "Cache-Control: max-age=2147483647"),
		twice("max-age of 2^31", cached, "Cache-Control: max-age=2147483648"),
		twice("max-age of more", cached, "Cache-Control: max-age=99999999999999999999999"),
		twice("max-age, with Expires in the past", cached, "Cache-Control: max-age=3600", "Expires: "+at(-10000*time.Second)),
		twice("max-age, with Expires: 0", cached, "Cache-Control: max-age=3600", "Expires: 0"),
		twice("max-age=0, with Expires in the future", origin, "Cache-Control: max-age=0", "Expires: "+at(10000*time.Second)),
		twice("max-age with unknown directives", cached, "Cache-Control: foobar, max-age=3600"),
		twice("max-age after an unknown directive with an argument", cached, "Cache-Control: foobar=1, max-age=3600"),
		twice("max-age after an unknown directive with a string", cached, `Cache-Control: foobar="a, max-age=0, b", max-age=3600`),
		twice("max-age in the string of an unknown directive", origin, `Cache-Control: foobar="max-age=3600"`),
		twice("no-store in the string of an unknown directive", cached, `Cache-Control: foobar="a, no-store", max-age=3600`),
		twice("a quote that doesn't close hides no no-store", origin, `Cache-Control: max-age=3600, foobar="a, no-store`),
		twice("MaX-aGe", cached, "Cache-Control: MaX-aGe=3600"),
		twice("MAX-AGE=0", origin, "Cache-Control: MAX-AGE=0", "Expires: "+at(time.Hour)),
		twice("max-age in quotes", cached, `Cache-Control: max-age="3600"`),
		twice("max-age in single quotes", origin, `Cache-Control: max-age='3600'`),
		twice("max-age with white space before =", origin, "Cache-Control: max-age =3600"),
		twice("max-age with white space after =", origin, "Cache-Control: max-age= 3600"),
		twice("max-age below zero", origin, "Cache-Control: max-age=-3600"),
		twice("max-age with a fraction", origin, "Cache-Control: max-age=3600.0"),
		twice("max-age with letters after it", origin, "Cache-Control: max-age=3600a"),
		twice("max-age with letters before it", origin, "Cache-Control: max-age=a3600"),
		twice("max-age with leading zeros", cached, "Cache-Control: max-age=003600"),
		twice("max-age without an argument", origin, "Cache-Control: max-age"),
		twice("an empty max-age", origin, "Cache-Control: max-age="),
		twice("two max-age, the second shorter", origin, "Cache-Control: max-age=3600, max-age=1", "Age: 60"),
		twice("two max-age, the first shorter", origin, "Cache-Control: max-age=1, max-age=3600", "Age: 60"),
		twice("two max-age on two lines", origin, "Cache-Control: max-age=3600", "Cache-Control: max-age=1", "Age: 60"),
		twice("directives on two lines", origin, "Cache-Control: max-age=3600", "Cache-Control: no-store"),
		twice("directives after a tab", cached, "Cache-Control: public,\tmax-age=3600"),
		twice("directives without white space", origin, "Cache-Control: max-age=3600,no-store"),
		twice("empty elements", cached, "Cache-Control: ,, max-age=3600 ,,"),
		twice("a semicolon separates nothing", origin, "Cache-Control: public; max-age=3600"),
		twice("s-maxage", cached, "Cache-Control: s-maxage=3600"),
		twice("s-maxage, with max-age=0", cached, "Cache-Control: s-maxage=3600, max-age=0"),
		twice("s-maxage, with max-age=0 before it", cached, "Cache-Control: max-age=0, s-maxage=3600"),
		twice("s-maxage=0, with max-age", origin, "Cache-Control: s-maxage=0, max-age=3600"),
		twice("s-maxage, with Expires in the past", cached, "Cache-Control: s-maxage=3600", "Expires: "+at(-time.Hour)),
		twice("an s-maxage that is no number", origin, "Cache-Control: s-maxage=a, max-age=3600"),
		twice("S-MAXAGE", cached, "Cache-Control: S-MAXAGE=3600"),

		twice("Age below the lifetime", cached, "Cache-Control: max-age=3600", "Age: 3000"),
		twice("Age above it", origin, "Cache-Control: max-age=3600", "Age: 7200"),
		twice("Age as long as it", origin, "Cache-Control: max-age=3600", "Age: 3600"),
		twice("Age, with Expires", origin, "Expires: "+at(time.Hour), "Age: 7200"),
		twice("Age is too large for a number", origin, "Cache-Control: max-age=3600", "Age: 99999999999999999999"),
		twice("two Age lines, the first counts", origin, "Cache-Control: max-age=3600", "Age: 7200", "Age: 0"),
		twice("Age that is a list", origin, "Cache-Control: max-age=3600", "Age: 7200, 0"),
		twice("Age below zero", cached, "Cache-Control: max-age=3600", "Age: -7200"),
		twice("Age with a fraction", cached, "Cache-Control: max-age=3600", "Age: 7200.0"),
		twice("Age that is a list, the first counts", cached, "Cache-Control: max-age=3600", "Age: 0, 7200"),
		twice("two Age lines, the first is young", cached, "Cache-Control: max-age=3600", "Age: 0", "Age: 7200"),
		twice("Age that is no number", cached, "Cache-Control: max-age=3600", "Age: abc"),

		twice("Expires in the future", cached, "Expires: "+at(time.Hour)),
		twice("Expires in the past", origin, "Expires: "+at(-time.Hour)),
		twice("Expires now", origin, "Expires: "+at(0)),
		twice("Expires less Date: stale", origin, "Expires: "+at(time.Hour), "Date: "+at(2*time.Hour)),
		twice("Expires less Date: fresh", cached, "Expires: "+at(-time.Hour), "Date: "+at(-2*time.Hour)),
		twice("Expires: 0", origin, "Expires: 0"),
		twice("Expires is empty", origin, "Expires:"),
		twice("Expires is no date", origin, "Expires: later"),
		twice("Expires of RFC 850", cached, "Expires: Thursday, 18-Aug-50 02:01:18 GMT"),
		twice("Expires of asctime", cached, "Expires: Thu Aug 18 02:01:18 2050"),
		twice("Expires with a dash in the date", origin, "Expires: Thu, 18-Aug-2050 02:01:18 GMT"),
		twice("Expires with one digit for the hour", origin, "Expires: Thu, 18 Aug 2050 2:01:18 GMT"),
		twice("Expires without a comma", origin, "Expires: Thu 18 Aug 2050 02:01:18 GMT"),
		twice("Expires in another zone", origin, "Expires: Thu, 18 Aug 2050 02:01:18 AEST"),
		twice("Expires in UTC by name", origin, "Expires: Thu, 18 Aug 2050 02:01:18 UTC"),
		twice("Expires with a year of two digits", origin, "Expires: Thu, 18 Aug 50 02:01:18 GMT"),
		twice("Expires with two spaces", origin, "Expires: Thu, 18  Aug  2050 02:01:18 GMT"),
		twice("Expires with periods in the time", origin, "Expires: Thu, 18 Aug 2050 02.01.18 GMT"),
		twice("Expires with the zone in other case", origin, "Expires: Thu, 18 Aug 2050 02:01:18 gMT"),
		twice("max-age in the string of an extension, before the real one", origin, `Cache-Control: extension="max-age=3600", max-age=1`, "Age: 2"),
		twice("max-age in the string of an extension, after the real one", origin, `Cache-Control: max-age=1, extension="max-age=3600"`, "Age: 2"),
		twice("Expires in the far future", cached, "Expires: Fri, 31 Dec 9999 23:59:59 GMT"),
		twice("two Expires, one of them past", origin, "Expires: "+at(time.Hour), "Expires: "+at(-time.Hour)),

		twice("no-store", origin, "Cache-Control: no-store"),
		twice("no-store, with a lifetime", origin, "Cache-Control: max-age=3600, no-store"),
		twice("NO-STORE", origin, "Cache-Control: max-age=3600, NO-STORE"),
		twice("no-store=1", origin, "Cache-Control: max-age=3600, no-store=1"),
		twice("private", origin, "Cache-Control: private, max-age=3600"),
		twice("Private with s-maxage", origin, "Cache-Control: Private, s-maxage=3600"),
		twice("private=x without quotes", origin, "Cache-Control: private=x, max-age=3600"),
		twice("no-cache without a validator", origin, "Cache-Control: no-cache, max-age=3600"),
		twice("No-Cache", origin, "Cache-Control: No-Cache, max-age=3600"),
		twice("no-cache on an Expires", origin, "Cache-Control: no-cache", "Expires: "+at(time.Hour)),
		twice("must-revalidate, fresh", cached, "Cache-Control: max-age=3600, must-revalidate"),
		twice("must-revalidate, stale", origin, "Cache-Control: max-age=3600, must-revalidate, stale-while-revalidate=9999", "Age: 7200"),
		twice("proxy-revalidate, stale", origin, "Cache-Control: max-age=3600, proxy-revalidate, stale-while-revalidate=9999", "Age: 7200"),
		twice("must-understand, of a status that is understood: no-store is for others", cached, "Cache-Control: must-understand, no-store, max-age=3600"),
		twice("public alone is no lifetime", origin, "Cache-Control: public"),
		twice("public with Last-Modified is one", cached, "Cache-Control: public", longAgo),
		twice("immutable alone is none", origin, "Cache-Control: immutable"),
		twice("Pragma: no-cache in a response means nothing", cached, "Cache-Control: max-age=3600", "Pragma: no-cache"),
		// net/http's client makes Cache-Control: no-cache of it.
		twice("Pragma: no-cache, with Expires", origin, "Pragma: no-cache", "Expires: "+at(time.Hour)),
		twice("Surrogate-Control isn't for it", origin, "Surrogate-Control: max-age=3600"),

		twice("CDN-Cache-Control", cached, "CDN-Cache-Control: max-age=3600"),
		twice("CDN-Cache-Control goes before no-store", cached, "CDN-Cache-Control: max-age=3600", "Cache-Control: no-store"),
		twice("CDN-Cache-Control goes before Expires", cached, "CDN-Cache-Control: max-age=3600", "Expires: "+at(-time.Hour)),
		twice("CDN-Cache-Control: no-store", origin, "CDN-Cache-Control: no-store", "Cache-Control: max-age=3600"),
		twice("CDN-Cache-Control: private", origin, "CDN-Cache-Control: private, max-age=3600", "Cache-Control: max-age=3600"),
		twice("CDN-Cache-Control: max-age=0", origin, "CDN-Cache-Control: max-age=0", "Cache-Control: max-age=3600"),
		twice("CDN-Cache-Control and Age", origin, "CDN-Cache-Control: max-age=3600", "Age: 7200"),
		twice("an invalid CDN-Cache-Control is ignored", origin, "CDN-Cache-Control: max-age=3600,,", "Cache-Control: no-store"),
		twice("CDN-Cache-Control in capitals is invalid", origin, "CDN-Cache-Control: MAX-AGE=3600", "Cache-Control: no-store"),
		twice("a parameter in CDN-Cache-Control", cached, "CDN-Cache-Control: max-age=3600;foo=1", "Cache-Control: no-store"),
		twice("CDN-Cache-Control with a string", origin, `CDN-Cache-Control: max-age="3600"`, "Cache-Control: no-store"),
		twice("CDN-Cache-Control with white space before =", origin, "CDN-Cache-Control: max-age =100", "Cache-Control: no-store"),
		twice("CDN-Cache-Control with white space after =", origin, "CDN-Cache-Control: max-age= 100", "Cache-Control: no-store"),
		twice("CDN-Cache-Control of more than 2^31", cached, "CDN-Cache-Control: max-age=99999999999"),
		twice("CDN-Cache-Control with an extension", cached, "CDN-Cache-Control: foobar, max-age=3600"),
		twice("CDN-Cache-Control: no-cache", origin, "CDN-Cache-Control: no-cache", "Cache-Control: max-age=3600", "Expires: "+at(time.Hour)),
		twice("CDN-Cache-Control with what is no type", origin, "CDN-Cache-Control: max-age=10000, &&&&&", "Cache-Control: no-store"),
		twice("an empty CDN-Cache-Control", cached, "CDN-Cache-Control:", "Cache-Control: max-age=3600"),
	})
}

func TestConformanceWithoutHeuristic(t *testing.T) {
	longAgo := "Last-Modified: " + at(-1000*time.Hour)
	tell(t, []story{
		twice("Last-Modified alone", origin, longAgo),
		twice("public with Last-Modified", origin, "Cache-Control: public", longAgo),
	}, "-heuristic=false")
}

func TestConformanceStatuses(t *testing.T) {
	var stories []story
	for _, status := range []int{200, 203, 204, 299, 301, 302, 303, 307, 308, 400, 403, 404, 405, 410, 414, 451, 499, 500, 501, 502, 503, 504, 599} {
		lives := cached
		switch status {
		case 400, 403, 405, 414, 500, 501, 502, 503, 504, 599:
			lives = origin // stricter than the RFC: it may be about one request
		}
		guessed := origin
		switch status {
		case 200, 203, 204, 301, 308, 404, 410:
			guessed = cached
		}
		stories = append(stories,
			withStatus(status, lives, "Cache-Control: max-age=3600", "Location: /elsewhere"),
			withStatus(status, lives, "Expires: "+at(time.Hour)),
			withStatus(status, cached, "Cache-Control: public, max-age=3600", "Location: /elsewhere"),
			withStatus(status, origin, "Cache-Control: max-age=3600, no-store"),
			withStatus(status, guessed, "Last-Modified: "+at(-1000*time.Hour)),
			withStatus(status, origin, "Cache-Control: max-age=3600", "Age: 7200"),
		)
	}
	stories = append(stories,
		story{"206 isn't stored", []step{
			{send: []string{"Range: bytes=0-3"}, status: 206, header: []string{"Cache-Control: max-age=3600", "Content-Range: bytes 0-3/100"}, body: "abcd", want: origin},
			{status: 206, header: []string{"Cache-Control: max-age=3600", "Content-Range: bytes 0-3/100"}, send: []string{"Range: bytes=0-3"}, body: "abcd", want: origin},
			{header: []string{"Cache-Control: max-age=3600"}, want: origin},
		}},
		story{"206 without a Range isn't stored", []step{
			{status: 206, header: []string{"Cache-Control: max-age=3600", "Content-Range: bytes 0-3/100"}, body: "abcd", want: origin},
			{header: []string{"Cache-Control: max-age=3600"}, want: origin},
		}},
	)
	tell(t, stories)
}
