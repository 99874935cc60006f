package rfc9111

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An Answer is the form in which a stored response answers a request.
type Answer uint8

const (
	// AnswerWhole: with its status, its header and, unless the request is HEAD, its body.
	AnswerWhole Answer = iota
	// AnswerNotModified: 304 with NotModifiedHeader.
	AnswerNotModified
	// AnswerRanges: 206, 416 or 200, by http.ServeContent for RangeRequest.
	AnswerRanges
	// AnswerElsewhere: the stored response fails If-Match or If-Unmodified-Since, which
	// only the origin evaluates (RFC 9111, 4.3.2).
	AnswerElsewhere
)

// maxRanges bounds the ranges of an answered request; one with more gets the whole (RFC
// 9110, 14.2, on egregious requests).
const maxRanges = 16

// AnswerFor returns the form in which a selected response answers a GET or HEAD (RFC 9110,
// 13.2.2; RFC 9111, 4.3.2).
func AnswerFor(req *http.Request, stored *Response) Answer {
	switch {
	case stored.Status < 200 || stored.Status > 299: // RFC 9110, 13.2.1
		return AnswerWhole
	case !stored.holds(req.Header):
		return AnswerElsewhere
	case stored.unmodified(req.Header):
		return AnswerNotModified
	case req.Method != http.MethodHead && stored.Status == http.StatusOK &&
		asksForRanges(req.Header) && stored.rangeHolds(req.Header):
		return AnswerRanges
	}
	return AnswerWhole
}

// holds evaluates If-Match, or If-Unmodified-Since if there is none.
func (r *Response) holds(req http.Header) bool {
	if lines, ok := req["If-Match"]; ok {
		return r.tagged(lines, strongMatch)
	}
	since, ok := r.condition(req, "If-Unmodified-Since")
	if !ok {
		return true
	}
	modified, dated := r.lastModified()
	return !dated || !modified.After(since)
}

// unmodified evaluates If-None-Match, or If-Modified-Since if there is none.
func (r *Response) unmodified(req http.Header) bool {
	if lines, ok := req["If-None-Match"]; ok {
		return r.tagged(lines, weakMatch)
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

// tagged reports whether a list of entity tags has *, or a match of the response's.
func (r *Response) tagged(lines []string, match func(a, b string) bool) bool {
	tags, star := entityTags(lines)
	etag := r.Header.Get("Etag")
	return star || isEntityTag(etag) && slices.ContainsFunc(tags, func(t string) bool { return match(t, etag) })
}

// condition reads a date of a request. Several dates, or a malformed one, are none.
func (r *Response) condition(req http.Header, name string) (time.Time, bool) {
	if len(req[name]) != 1 {
		return time.Time{}, false
	}
	return ParseDate(req[name][0], r.ResponseTime)
}

// rangeHolds evaluates If-Range (RFC 9110, 13.1.5), by strong validators only. A
// Last-Modified is one if the response was generated at least a second later (8.8.2.2).
func (r *Response) rangeHolds(req http.Header) bool {
	lines, ok := req["If-Range"]
	switch {
	case !ok:
		return true
	case len(lines) == 1 && isEntityTag(lines[0]):
		return strongMatch(lines[0], r.Header.Get("Etag"))
	}
	given, ok := r.condition(req, "If-Range")
	modified, isModified := r.lastModified()
	date, isDate := ParseDate(r.Header.Get("Date"), r.ResponseTime)
	return ok && isModified && isDate && given.Equal(modified) && date.Sub(modified) >= time.Second
}

// asksForRanges reports whether a request has a valid Range of bytes, and not too many
// ranges. Any other Range is ignored (RFC 9110, 14.2).
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
		from, errFrom := strconv.ParseUint(first, 10, 63)
		to, errTo := strconv.ParseUint(last, 10, 63)
		switch {
		case !ok, errFrom != nil && first != "", errTo != nil && last != "", errFrom != nil && errTo != nil:
			return false
		case errFrom == nil && errTo == nil && to < from:
			return false
		}
	}
	return len(ranges) > 0 && len(ranges) <= maxRanges
}

// RangeRequest is the request for http.ServeContent to answer AnswerRanges, without the
// conditions, which AnswerFor evaluated.
func RangeRequest(req *http.Request) *http.Request {
	r := new(http.Request)
	*r = *req
	_, set, _ := strings.Cut(req.Header.Get("Range"), "=")
	r.Header = http.Header{"Range": {"bytes=" + set}} // ServeContent knows the unit in lower case only
	return r
}

// RemoveContentDigests changes h, for AnswerRanges: a digest of the whole content would be
// read as that of the part (RFC 9530, 2).
func RemoveContentDigests(h http.Header) {
	removeFields(h, []string{"Content-Digest", "Content-Md5"})
}

// notIn304 is the metadata of a representation that a 304 does not need.
var notIn304 = []string{"Content-Encoding", "Content-Language", "Content-Length", "Content-Range", "Content-Type"}

// NotModifiedHeader returns the part of a stored response's header that a 304 has (RFC
// 9110, 15.4.5), as a copy.
func NotModifiedHeader(stored http.Header) http.Header {
	h := stored.Clone()
	removeFields(h, notIn304)
	if h.Get("Etag") != "" {
		delete(h, "Last-Modified")
	}
	return h
}

var conditions = []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range"}

// RemoveConditions changes a request's header so that it asks for the whole response.
func RemoveConditions(h http.Header) { removeFields(h, conditions) }

// HasValidator reports whether a stored response can be validated: it has an ETag or a
// Last-Modified.
func HasValidator(h http.Header) bool {
	_, dated := ParseDate(h.Get("Last-Modified"), time.Unix(0, 0))
	return dated || isEntityTag(h.Get("Etag"))
}

// SetConditions changes a request's header to validate stored responses (RFC 9111,
// 4.3.1). It replaces existing conditions, and reports whether it set any.
func SetConditions(req http.Header, stored ...http.Header) bool {
	RemoveConditions(req)
	var tags []string
	for _, h := range stored {
		if tag := h.Get("Etag"); isEntityTag(tag) && !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	if len(tags) > 0 {
		req.Set("If-None-Match", strings.Join(tags, ", "))
	}
	if len(stored) == 1 {
		modified := stored[0].Get("Last-Modified")
		if _, ok := ParseDate(modified, time.Unix(0, 0)); ok {
			req.Set("If-Modified-Since", modified) // unchanged, for servers that compare text
		}
	}
	return len(req["If-None-Match"]) > 0 || len(req["If-Modified-Since"]) > 0
}

// Selected returns the indices of the stored responses that a 304 freshens (RFC 9111,
// 4.3.4). Without any, the request is made again without conditions. The stored responses
// are those of SetConditions, the newest first. A 304 without a validator freshens the
// only stored response, also if that has one: it can mean no other.
func Selected(notModified http.Header, stored ...http.Header) []int {
	tag, modified := notModified.Get("Etag"), notModified.Get("Last-Modified")
	strong := isEntityTag(tag) && !isWeak(tag)
	var same []int
	for i, h := range stored {
		var match bool
		switch {
		case strong:
			match = strongMatch(tag, h.Get("Etag"))
		case tag != "":
			match = weakMatch(tag, h.Get("Etag"))
		case modified != "":
			match = modified == h.Get("Last-Modified")
		default:
			match = len(stored) == 1
		}
		if match {
			same = append(same, i)
		}
	}
	if !strong && len(same) > 1 { // the newest
		same = same[:1]
	}
	return same
}

// notUpdated are the fields that describe the stored body. A later header describes
// another one: compression may have changed it, and a 304 has none.
var notUpdated = []string{"Content-Encoding", "Content-Length", "Content-Range"}

// Freshen returns the header of a stored response after a 304 or a HEAD, as a copy (RFC
// 9111, 3.2). The caller applies Store to it, with the times of the validation, and
// StoredHeader.
func Freshen(stored, update http.Header, o Options) http.Header {
	h, u := stored.Clone(), update.Clone()
	removeFields(h, []string{"Age", "Date"}) // those of the old response
	RemoveHopByHop(u)
	c := ParseResponse(update, o)
	c.removeLimited(u, o)
	removeFields(u, notUpdated)
	for name, values := range u {
		h[name] = values
	}
	return h
}

// HeadAgrees reports whether the answer to a HEAD agrees with a stored response and may
// freshen it. Otherwise the stored response is stale (RFC 9111, 4.3.5).
func HeadAgrees(stored, head http.Header) bool {
	agree := func(name string) bool {
		v, was := head.Get(name), stored.Get(name)
		return v == "" || v == was
	}
	// Servers weaken the tag of a compressed response, and a HEAD may not accept compression.
	tag := agree("Etag") || weakMatch(head.Get("Etag"), stored.Get("Etag"))
	return tag && agree("Last-Modified") && (stored.Get("Content-Length") == "" || agree("Content-Length"))
}
