package rfc9111

import (
	"net/http"
	"strings"
	"time"
)

// An Answer is the form in which a stored response answers a request.
type Answer uint8

const (
	// AnswerWhole: with its status, header and, unless the request is HEAD, its
	// body.
	AnswerWhole Answer = iota
	// AnswerNotModified: 304 with NotModifiedHeader.
	AnswerNotModified
	// AnswerRanges: what http.ServeContent makes of RangeRequest, which is 206, 416
	// or 200.
	AnswerRanges
	// AnswerElsewhere: it has an If-Match or If-Unmodified-Since that doesn't hold of
	// what is stored. A cache doesn't evaluate those (RFC 9111, 4.3.2): what it
	// means is the origin's to say, so the request goes there by itself.
	AnswerElsewhere
)

// maxRanges of a request are answered; one with more gets the whole (RFC 9110,
// 14.2, on egregious requests).
const maxRanges = 16

// AnswerFor says how a stored response answers a GET or HEAD that it was chosen
// for (RFC 9110, 13.2.2; RFC 9111, 4.3.2).
func AnswerFor(req *http.Request, stored *Response) Answer {
	if stored.Status < 200 || stored.Status > 299 {
		return AnswerWhole // RFC 9110, 13.2.1
	}
	if !stored.holds(req.Header) {
		return AnswerElsewhere
	}
	if stored.unmodified(req.Header) {
		return AnswerNotModified
	}
	if req.Method != http.MethodHead && stored.Status == http.StatusOK &&
		asksForRanges(req.Header) && stored.rangeHolds(req.Header) {
		return AnswerRanges
	}
	return AnswerWhole
}

// holds evaluates If-Match, or If-Unmodified-Since if there is none.
func (r *Response) holds(req http.Header) bool {
	if lines, ok := req["If-Match"]; ok {
		tags, any := entityTags(lines)
		for _, t := range tags {
			any = any || strongMatch(t, r.Header.Get("Etag"))
		}
		return any
	}
	since, ok := r.condition(req, "If-Unmodified-Since")
	modified, dated := r.lastModified()
	return !ok || !dated || !modified.After(since)
}

// unmodified evaluates If-None-Match, or If-Modified-Since if there is none.
func (r *Response) unmodified(req http.Header) bool {
	if lines, ok := req["If-None-Match"]; ok {
		tags, any := entityTags(lines)
		etag := r.Header.Get("Etag")
		for _, t := range tags {
			any = any || (isEntityTag(etag) && weakMatch(t, etag))
		}
		return any
	}
	since, ok := r.condition(req, "If-Modified-Since")
	if !ok {
		return false
	}
	modified, dated := r.lastModified()
	if !dated {
		modified = r.date() // RFC 9111, 4.3.2
	}
	return !modified.IsZero() && !modified.Truncate(time.Second).After(since)
}

// condition reads a date of a request. Several, or what isn't a date, are none.
func (r *Response) condition(req http.Header, name string) (time.Time, bool) {
	if len(req[name]) != 1 {
		return time.Time{}, false
	}
	return ParseDate(req[name][0], r.ResponseTime)
}

// rangeHolds evaluates If-Range (RFC 9110, 13.1.5), by strong validators only.
func (r *Response) rangeHolds(req http.Header) bool {
	lines, ok := req["If-Range"]
	if !ok {
		return true
	}
	if len(lines) != 1 {
		return false
	}
	if isEntityTag(lines[0]) {
		return strongMatch(lines[0], r.Header.Get("Etag"))
	}
	given, ok := ParseDate(lines[0], r.ResponseTime)
	modified, dated := r.lastModified()
	return ok && dated && given.Equal(modified) && r.strongDate(modified)
}

// strongDate reports whether a Last-Modified is a strong validator: the response
// was generated at least a second later (RFC 9110, 8.8.2.2).
func (r *Response) strongDate(modified time.Time) bool {
	date, ok := ParseDate(r.Header.Get("Date"), r.ResponseTime)
	return ok && date.Sub(modified) >= time.Second
}

// asksForRanges reports whether a request has a valid Range of bytes, and not too
// many of them. Any other is ignored (RFC 9110, 14.2).
func asksForRanges(req http.Header) bool {
	if len(req["Range"]) != 1 {
		return false
	}
	unit, set, ok := strings.Cut(req["Range"][0], "=")
	if !ok || !strings.EqualFold(unit, "bytes") {
		return false
	}
	ranges := splitList(set)
	for _, r := range ranges {
		first, last, ok := strings.Cut(r, "-")
		from, hasFrom := position(first)
		to, hasTo := position(last)
		if !ok || (!hasFrom && first != "") || (!hasTo && last != "") || (!hasFrom && !hasTo) {
			return false
		}
		if hasFrom && hasTo && to < from {
			return false
		}
	}
	return len(ranges) > 0 && len(ranges) <= maxRanges
}

// position reads one of a range; no body has one of more than 18 digits.
func position(s string) (n int64, ok bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}

// RangeRequest is the request for http.ServeContent to answer AnswerRanges: it
// has the Range and no conditions, as those have been seen to.
func RangeRequest(req *http.Request) *http.Request {
	r := new(http.Request)
	*r = *req
	_, set, _ := strings.Cut(req.Header.Get("Range"), "=")
	r.Header = http.Header{"Range": {"bytes=" + set}} // ServeContent knows the unit in lower case only
	return r
}

// RemoveContentDigests takes out of a header for AnswerRanges what is a digest of the
// whole content: what comes with a part is taken for that part's (RFC 9530, 2).
func RemoveContentDigests(h http.Header) {
	delete(h, "Content-Digest")
	delete(h, "Content-Md5")
}

// notIn304 is the metadata of a representation that a 304 has no use for.
var notIn304 = []string{"Content-Encoding", "Content-Language", "Content-Length", "Content-Range", "Content-Type"}

// NotModifiedHeader is what of a stored response's header a 304 carries (RFC
// 9110, 15.4.5), as a copy.
func NotModifiedHeader(stored http.Header) http.Header {
	h := stored.Clone()
	for _, name := range notIn304 {
		delete(h, name)
	}
	if h.Get("Etag") != "" {
		delete(h, "Last-Modified")
	}
	return h
}

// RemoveConditions takes out of a request's header what asks for less than the
// whole response: the If- fields and Range.
func RemoveConditions(h http.Header) {
	for _, name := range []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range"} {
		delete(h, name)
	}
}
