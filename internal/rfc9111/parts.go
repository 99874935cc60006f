package rfc9111

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
)

// A Part is a range of a representation's bytes.
type Part struct{ First, Last, Total int64 }

// Size is the number of bytes of the part.
func (p Part) Size() int64 { return p.Last - p.First + 1 }

// IsWhole reports whether the part is all of the representation.
func (p Part) IsWhole() bool { return p.First == 0 && p.Last == p.Total-1 }

// Has reports whether the part contains another one of the same representation.
func (p Part) Has(other Part) bool { return p.First <= other.First && other.Last <= p.Last }

// Touches reports whether there is no gap between two parts of one representation.
func (p Part) Touches(other Part) bool {
	return p.Total == other.Total && p.First <= other.Last+1 && other.First <= p.Last+1
}

// String is the value of Content-Range.
func (p Part) String() string {
	return "bytes " + strconv.FormatInt(p.First, 10) + "-" + strconv.FormatInt(p.Last, 10) + "/" + strconv.FormatInt(p.Total, 10)
}

// PartOf returns the part that a response with status 206 has (RFC 9110, 14.4). ok is false
// for several parts, for an unknown total, and for any other response.
func PartOf(status int, h http.Header) (p Part, ok bool) {
	lines := h["Content-Range"]
	if status != http.StatusPartialContent || len(lines) != 1 {
		return Part{}, false
	}
	unit, rest, ok := strings.Cut(lines[0], " ")
	span, total, ok2 := strings.Cut(rest, "/")
	first, last, ok3 := strings.Cut(span, "-")
	if !ok || !ok2 || !ok3 || !strings.EqualFold(unit, "bytes") {
		return Part{}, false
	}
	for _, n := range []struct {
		text string
		to   *int64
	}{{first, &p.First}, {last, &p.Last}, {total, &p.Total}} {
		v, err := strconv.ParseUint(n.text, 10, 62)
		if err != nil {
			return Part{}, false
		}
		*n.to = int64(v)
	}
	return p, p.First <= p.Last && p.Last < p.Total
}

// AsksForPart reports whether a request asks for one range, on no condition but If-Range.
func AsksForPart(req *http.Request) bool {
	h := req.Header
	return (req.Method == http.MethodGet || req.Method == "") && asksForRanges(h) && !strings.Contains(h["Range"][0], ",") &&
		len(h["If-None-Match"]) == 0 && len(h["If-Modified-Since"]) == 0 && len(h["If-Match"]) == 0 && len(h["If-Unmodified-Since"]) == 0
}

// RequestedPart returns the part that a request for which AsksForPart holds asks a
// representation of a size for. ok is false for a part beyond the end.
func RequestedPart(req *http.Request, total int64) (p Part, ok bool) {
	_, span, _ := strings.Cut(req.Header["Range"][0], "=")
	first, last, _ := strings.Cut(trim(span), "-")
	from, errFrom := strconv.ParseInt(first, 10, 64)
	to, errTo := strconv.ParseInt(last, 10, 64)
	p = Part{from, total - 1, total}
	switch {
	case errFrom != nil: // the last bytes
		p.First = max(0, total-to)
	case errTo == nil:
		p.Last = min(to, p.Last)
	}
	return p, p.First <= p.Last
}

// WholeHeader returns the header of a response with a part as it would be with the whole.
func WholeHeader(part http.Header) http.Header {
	h := part.Clone()
	removeFields(h, []string{"Content-Range", "Content-Length"})
	RemoveContentDigests(h)
	return h
}

// CombinedHeader returns the header of a part that is combined with a stored one. Fields of the
// part replace those that are stored, and it need not repeat the others (RFC 9110, 15.3.7).
func CombinedHeader(stored, part http.Header) http.Header {
	h := stored.Clone()
	removeFields(h, []string{"Age", "Date"}) // those of the stored response
	maps.Copy(h, part)
	return h
}

// Rest returns the part of the representation that a stored part lacks. ok is false if the
// part is the whole, or if it lacks bytes on both sides.
func (p Part) Rest() (rest Part, ok bool) {
	switch {
	case p.IsWhole():
	case p.First == 0:
		return Part{p.Last + 1, p.Total - 1, p.Total}, true
	case p.Last == p.Total-1:
		return Part{0, p.First - 1, p.Total}, true
	}
	return Part{}, false
}

// AskForRest changes a request's header to ask for the rest of a stored part, or for the whole
// if that is another one by now (RFC 9110, 13.1.5).
func AskForRest(req http.Header, rest Part, stored http.Header) {
	RemoveConditions(req)
	to := ""
	if rest.First == 0 {
		to = strconv.FormatInt(rest.Last, 10)
	}
	req["Range"] = []string{"bytes=" + strconv.FormatInt(rest.First, 10) + "-" + to}
	req["If-Range"] = []string{stored.Get("Etag")}
}

// Combines reports whether parts of two responses are of one representation (RFC 9110,
// 15.3.7.3): they have the same strong ETag.
func Combines(a, b http.Header) bool {
	return isEntityTag(a.Get("Etag")) && strongMatch(a.Get("Etag"), b.Get("Etag"))
}

// IfRangeHolds reports whether a request has no If-Range, or one that the stored response
// meets.
func IfRangeHolds(req http.Header, stored *Response) bool { return stored.rangeHolds(req) }
