package rfc9111_test

import (
	"testing"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

func TestPartOfReadsContentRange(t *testing.T) {
	for in, want := range map[string]rfc9111.Part{
		"bytes 0-0/1": {First: 0, Last: 0, Total: 1}, "BYTES 2-7/10": {First: 2, Last: 7, Total: 10}, "bytes 5-9/10": {First: 5, Last: 9, Total: 10},
	} {
		got, ok := rfc9111.PartOf(206, fields("Content-Range: "+in))
		if !ok || got != want {
			t.Errorf("%s: %v %v", in, got, ok)
		}
		if _, ok := rfc9111.PartOf(200, fields("Content-Range: "+in)); ok {
			t.Errorf("%s of a 200 is a part", in)
		}
	}
	for _, in := range []string{
		"", "bytes", "bytes 0-1/*", "bytes */10", "bytes 3-2/10", "bytes 0-10/10", "bytes -1-2/10", "bytes 0-1/10, bytes 3-4/10",
		"items 0-1/10", "bytes  0-1/10", "bytes 0-1/99999999999999999999", "bytes +0-1/10", "bytes=0-1/10",
	} {
		if got, ok := rfc9111.PartOf(206, fields("Content-Range: "+in)); ok {
			t.Errorf("%q is %v", in, got)
		}
	}
	if _, ok := rfc9111.PartOf(206, fields("Content-Range: bytes 0-1/10\nContent-Range: bytes 0-1/10")); ok {
		t.Error("two lines are a part")
	}
}

func TestRequestedPartIsThatOfTheRange(t *testing.T) {
	for in, want := range map[string]string{
		"bytes=0-3": "bytes 0-3/10", "bytes=7-": "bytes 7-9/10", "bytes=-3": "bytes 7-9/10", "bytes=-30": "bytes 0-9/10", "bytes=5-500": "bytes 5-9/10",
		"bytes=0-9223372036854775807": "bytes 0-9/10", "bytes=10-": "", "bytes=-0": "", "bytes= 2-3 ": "bytes 2-3/10",
	} {
		req := request("GET http://a/\nRange: " + in)
		if !rfc9111.AsksForPart(req) {
			t.Errorf("%s asks for no part", in)
			continue
		}
		got, ok := rfc9111.RequestedPart(req, 10)
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%s: %v %v, want %s", in, got, ok, want)
		}
	}
	for _, in := range []string{
		"GET http://a/", "HEAD http://a/\nRange: bytes=0-3", "GET http://a/\nRange: bytes=0-1,4-5", "GET http://a/\nRange: lines=0-1",
		"GET http://a/\nRange: bytes=3-1", "GET http://a/\nRange: bytes=0-1\nIf-None-Match: *", "GET http://a/\nRange: bytes=0-1\nIf-Match: *",
	} {
		if rfc9111.AsksForPart(request(in)) {
			t.Errorf("%q asks for a part", in)
		}
	}
}

func TestPartsTouchWithoutAGap(t *testing.T) {
	at := func(first, last int64) rfc9111.Part { return rfc9111.Part{First: first, Last: last, Total: 10} }
	for _, c := range []struct {
		a, b         rfc9111.Part
		touches, has bool
	}{
		{at(0, 3), at(4, 5), true, false},
		{at(0, 3), at(5, 6), false, false},
		{at(2, 8), at(3, 8), true, true},
		{at(2, 8), at(1, 2), true, false},
		{at(2, 3), rfc9111.Part{First: 4, Last: 5, Total: 11}, false, false},
	} {
		if c.a.Touches(c.b) != c.touches || c.b.Touches(c.a) != c.touches || c.a.Has(c.b) != c.has {
			t.Errorf("%v and %v", c.a, c.b)
		}
	}
	if !at(0, 9).IsWhole() || at(0, 8).IsWhole() || at(1, 9).IsWhole() {
		t.Error("the wrong parts are the whole")
	}
}
