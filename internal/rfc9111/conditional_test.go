package rfc9111_test

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

type answerRow struct {
	rule
	req, resp string
	want      rfc9111.Answer
}

const (
	whole       = rfc9111.AnswerWhole
	notModified = rfc9111.AnswerNotModified
	ranges      = rfc9111.AnswerRanges
	atOrigin    = rfc9111.AnswerElsewhere
)

const (
	etagged = "Etag: \"a\"\nLast-Modified: $-1h\nDate: $0s"
	weakly  = "Etag: W/\"a\"\nLast-Modified: $-1h\nDate: $0s"
)

var answerRows = []answerRow{
	{rule{"9110 13.1.2", "If-None-Match with the stored tag: 304"}, "GET\nIf-None-Match: \"a\"", etagged, notModified},
	{rule{"9110 13.1.2", "If-None-Match of a HEAD, too"}, "HEAD\nIf-None-Match: \"a\"", etagged, notModified},
	{rule{"9110 13.1.2", "If-None-Match with another tag: whole"}, "GET\nIf-None-Match: \"b\"", etagged, whole},
	{rule{"9110 13.1.2", "If-None-Match with the tag in a list"}, "GET\nIf-None-Match: \"b\", W/\"c,\",\"a\"", etagged, notModified},
	{rule{"9110 13.1.2", "If-None-Match on several lines"}, "GET\nIf-None-Match: \"b\"\nIf-None-Match: \"a\"", etagged, notModified},
	{rule{"9110 13.1.2", "If-None-Match compares weakly"}, "GET\nIf-None-Match: W/\"a\"", etagged, notModified},
	{rule{"9110 13.1.2", "If-None-Match compares weakly with a weak tag"}, "GET\nIf-None-Match: \"a\"", weakly, notModified},
	{rule{"9110 13.1.2", "If-None-Match: * matches any stored response"}, "GET\nIf-None-Match: *", etagged, notModified},
	{rule{"9110 13.1.2", "a tag without quotes matches nothing"}, "GET\nIf-None-Match: a", "Etag: a", whole},
	{rule{"9110 13.1.2", "text with a space in it is no tag"}, "GET\nIf-None-Match: \"a b\"", "Etag: \"a b\"", whole},
	{rule{"9110 13.1.2", "W/ alone is no tag"}, "GET\nIf-None-Match: W/", "Etag: W/", whole},
	{rule{"9110 13.1.2", "part of a tag matches nothing"}, "GET\nIf-None-Match: \"a", etagged, whole},
	{rule{"9110 13.1.3", "If-Modified-Since the stored date: 304"}, "GET\nIf-Modified-Since: $-1h", etagged, notModified},
	{rule{"9110 13.1.3", "If-Modified-Since a later date: 304"}, "GET\nIf-Modified-Since: $-30m", etagged, notModified},
	{rule{"9110 13.1.3", "If-Modified-Since an earlier date: whole"}, "GET\nIf-Modified-Since: $-2h", etagged, whole},
	{rule{"9110 13.1.3", "If-Modified-Since is ignored beside If-None-Match"}, "GET\nIf-Modified-Since: $-1h\nIf-None-Match: \"b\"", etagged, whole},
	{rule{"9110 13.1.3", "If-Modified-Since that isn't a date is ignored"}, "GET\nIf-Modified-Since: yesterday", etagged, whole},
	{rule{"9110 13.1.3", "two If-Modified-Since are ignored"}, "GET\nIf-Modified-Since: $-1h\nIf-Modified-Since: $-1h", etagged, whole},
	{rule{"9111 4.3.2", "If-Modified-Since goes by Date where Last-Modified is missing"}, "GET\nIf-Modified-Since: $-1h", "Date: $-1h", notModified},
	{rule{"9111 4.3.2", "If-Modified-Since goes by the arrival where Date is missing, too"}, "GET\nIf-Modified-Since: $-1h", "X: y", whole},
	{rule{"9111 4.3.2", "If-Match that holds is answered"}, "GET\nIf-Match: \"b\", \"a\"", etagged, whole},
	{rule{"9111 4.3.2", "If-Match: * holds"}, "GET\nIf-Match: *", etagged, whole},
	{rule{"9111 4.3.2", "If-Match that doesn't hold goes to the origin"}, "GET\nIf-Match: \"b\"", etagged, atOrigin},
	{rule{"9111 4.3.2", "If-Match compares strongly"}, "GET\nIf-Match: W/\"a\"", weakly, atOrigin},
	{rule{"9111 4.3.2", "If-Unmodified-Since that holds is answered"}, "GET\nIf-Unmodified-Since: $-1h", etagged, whole},
	{rule{"9111 4.3.2", "If-Unmodified-Since that doesn't hold goes to the origin"}, "GET\nIf-Unmodified-Since: $-2h", etagged, atOrigin},
	{rule{"9111 4.3.2", "If-Unmodified-Since is ignored beside If-Match"}, "GET\nIf-Match: \"a\"\nIf-Unmodified-Since: $-2h", etagged, whole},
	{rule{"9110 13.2.1", "conditions are ignored where the stored status isn't 2xx"}, "GET\nIf-None-Match: \"a\"", "404\n" + etagged, whole},
	{rule{"9110 13.2.1", "conditions are evaluated for any 2xx"}, "GET\nIf-None-Match: \"a\"", "299\n" + etagged, notModified},
	{rule{"9110 13.2.2", "If-Match goes first"}, "GET\nIf-Match: \"b\"\nIf-None-Match: \"a\"", etagged, atOrigin},
	{rule{"9110 13.2.2", "If-None-Match goes before Range"}, "GET\nIf-None-Match: \"a\"\nRange: bytes=0-1", etagged, notModified},
	{rule{"9110 13.2.2", "Range follows an If-None-Match that doesn't match"}, "GET\nIf-None-Match: \"b\"\nRange: bytes=0-1", etagged, ranges},

	{rule{"9110 14.2", "Range: ranges of the stored response"}, "GET\nRange: bytes=0-1", etagged, ranges},
	{rule{"9110 14.2", "the unit is case-insensitive"}, "GET\nRange: Bytes=0-1", etagged, ranges},
	{rule{"9110 14.2", "ranges may be open, be counted from the end, and be several"}, "GET\nRange: bytes=5-, -3, 1-1", etagged, ranges},
	{rule{"9110 14.2", "Range of a HEAD is ignored"}, "HEAD\nRange: bytes=0-1", etagged, whole},
	{rule{"9110 14.2", "Range of a unit that isn't known is ignored"}, "GET\nRange: lines=0-1", etagged, whole},
	{rule{"9110 14.2", "Range that is malformed is ignored"}, "GET\nRange: bytes=a-b", etagged, whole},
	{rule{"9110 14.2", "Range with a beginning that is no number is ignored"}, "GET\nRange: bytes=a-5", etagged, whole},
	{rule{"9110 14.2", "Range with an end that is no number is ignored"}, "GET\nRange: bytes=5-a", etagged, whole},
	{rule{"9110 14.2", "Range that ends before it begins is ignored"}, "GET\nRange: bytes=5-4", etagged, whole},
	{rule{"9110 14.2", "Range of nothing is ignored"}, "GET\nRange: bytes=-", etagged, whole},
	{rule{"9110 14.2", "too many ranges are ignored"}, "GET\nRange: bytes=0-0,2-2,4-4,6-6,8-8,10-10,12-12,14-14,16-16,18-18,20-20,22-22,24-24,26-26,28-28,30-30,32-32", etagged, whole},
	{rule{"9110 14.2", "Range of a response other than 200 is ignored"}, "GET\nRange: bytes=0-1", "404\n" + etagged, whole},
	{rule{"9110 13.1.5", "If-Range with the stored tag: ranges"}, "GET\nRange: bytes=0-1\nIf-Range: \"a\"", etagged, ranges},
	{rule{"9110 13.1.5", "If-Range with another tag: whole"}, "GET\nRange: bytes=0-1\nIf-Range: \"b\"", etagged, whole},
	{rule{"9110 13.1.5", "If-Range compares strongly"}, "GET\nRange: bytes=0-1\nIf-Range: W/\"a\"", weakly, whole},
	{rule{"9110 13.1.5", "If-Range with the stored date: ranges"}, "GET\nRange: bytes=0-1\nIf-Range: $-1h", etagged, ranges},
	{rule{"9110 13.1.5", "If-Range with a later date: whole, as dates have to be equal"}, "GET\nRange: bytes=0-1\nIf-Range: $-30m", etagged, whole},
	{rule{"9110 13.1.5", "If-Range with a date that isn't a strong validator: whole"}, "GET\nRange: bytes=0-1\nIf-Range: $0s", "Last-Modified: $0s\nDate: $0s", whole},
	{rule{"9110 13.1.5", "two If-Range: whole"}, "GET\nRange: bytes=0-1\nIf-Range: \"a\"\nIf-Range: \"a\"", etagged, whole},
	{rule{"9110 13.1.5", "If-Range without Range is ignored"}, "GET\nIf-Range: \"b\"", etagged, whole},
}

func TestAnswerFor(t *testing.T) {
	run(t, answerRows, func(t *testing.T, r answerRow) {
		if got := rfc9111.AnswerFor(request(r.req), response(r.resp)); got != r.want {
			t.Errorf("got %d, want %d", got, r.want)
		}
	})
}

// http.ServeContent answers AnswerRanges by RFC 9110, 14.
func TestRangesAreServed(t *testing.T) {
	body := []byte("0123456789")
	serve := func(rangeField string) *httptest.ResponseRecorder {
		req := request("GET\nIf-Range: \"a\"\nIf-Modified-Since: $-2h\nRange: " + rangeField)
		if got := rfc9111.AnswerFor(req, response(etagged)); got != ranges {
			t.Fatalf("%s: answer %d", rangeField, got)
		}
		w := httptest.NewRecorder()
		w.Header().Set("Content-Type", "text/plain")
		http.ServeContent(w, rfc9111.RangeRequest(req), "", time.Time{}, bytes.NewReader(body))
		return w
	}
	for field, want := range map[string]string{
		"bytes=0-1": "01", "BYTES=8-": "89", "bytes=-3": "789", "bytes=8-100": "89", "bytes=-100": "0123456789",
	} {
		w := serve(field)
		if w.Code != http.StatusPartialContent || w.Body.String() != want || w.Header().Get("Content-Range") == "" {
			t.Errorf("%s: %d %q %v", field, w.Code, w.Body, w.Header())
		}
	}
	if w := serve("bytes=10-"); w.Code != http.StatusRequestedRangeNotSatisfiable || w.Header().Get("Content-Range") != "bytes */10" {
		t.Errorf("beyond the end: %d %v", w.Code, w.Header())
	}

	w := serve("bytes=0-1,8-9")
	mediaType, params, err := mime.ParseMediaType(w.Header().Get("Content-Type"))
	if err != nil || mediaType != "multipart/byteranges" || w.Code != http.StatusPartialContent {
		t.Fatalf("two ranges: %d %v", w.Code, w.Header())
	}
	var parts []string
	for r := multipart.NewReader(w.Body, params["boundary"]); ; {
		p, err := r.NextPart()
		if err != nil {
			break
		}
		content, _ := io.ReadAll(p)
		parts = append(parts, p.Header.Get("Content-Range")+" "+p.Header.Get("Content-Type")+" "+string(content))
	}
	if want := []string{"bytes 0-1/10 text/plain 01", "bytes 8-9/10 text/plain 89"}; !slices.Equal(parts, want) {
		t.Errorf("two ranges: %q", parts)
	}
}

type notModifiedRow struct {
	rule
	stored     string
	gone, kept []string
}

var notModifiedRows = []notModifiedRow{
	{rule{"9110 15.4.5", "a 304 carries Content-Location, Date, ETag, Vary, Cache-Control and Expires"}, "Content-Location: /a\nDate: $0s\nEtag: \"a\"\nVary: A\nCache-Control: public\nExpires: $1h", nil, []string{"Content-Location", "Date", "Etag", "Vary", "Cache-Control", "Expires"}},
	{rule{"9110 15.4.5", "a 304 carries no other metadata of the representation"}, "Content-Type: text/plain\nContent-Length: 5\nContent-Encoding: gzip\nContent-Language: en\nEtag: \"a\"\nLast-Modified: $-1h", []string{"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Last-Modified"}, []string{"Etag"}},
	{rule{"9110 15.4.5", "a 304 carries Last-Modified where there is no ETag"}, "Last-Modified: $-1h", nil, []string{"Last-Modified"}},
	{rule{"9110 15.4.5", "a 304 carries the other fields"}, "X-A: 1\nAccess-Control-Allow-Origin: *", nil, []string{"X-A", "Access-Control-Allow-Origin"}},
}

func TestNotModifiedHeader(t *testing.T) {
	run(t, notModifiedRows, func(t *testing.T, r notModifiedRow) {
		stored := fields(r.stored)
		h := rfc9111.NotModifiedHeader(stored)
		for _, name := range r.gone {
			if h.Get(name) != "" || stored.Get(name) == "" {
				t.Errorf("%s: %q, stored %q", name, h.Get(name), stored.Get(name))
			}
		}
		for _, name := range r.kept {
			if h.Get(name) == "" {
				t.Errorf("%s is missing", name)
			}
		}
	})
}

// Pitfall 38: conditional and Range requests don't reach the shared fetch.
func TestNothingConditionalIsLeft(t *testing.T) {
	h := fields("If-Match: a\nIf-None-Match: b\nIf-Modified-Since: c\nIf-Unmodified-Since: d\nIf-Range: e\nRange: f\nAccept: g")
	rfc9111.RemoveConditions(h)
	if len(h) != 1 || h.Get("Accept") != "g" {
		t.Errorf("left: %v", h)
	}
}
