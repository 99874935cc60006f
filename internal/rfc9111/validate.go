package rfc9111

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// HasValidator reports whether a stored response can be validated: whether it
// has an ETag or a Last-Modified.
func HasValidator(h http.Header) bool {
	_, dated := ParseDate(h.Get("Last-Modified"), time.Unix(0, 0))
	return dated || isEntityTag(h.Get("Etag"))
}

// SetConditions makes a request's header ask for validation of stored responses
// (RFC 9111, 4.3.1). It replaces conditions that are there, and reports whether it
// set any.
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
			req.Set("If-Modified-Since", modified) // as it was given, for those who compare text
		}
	}
	return len(req["If-None-Match"]) > 0 || len(req["If-Modified-Since"]) > 0
}

// Selected returns which of the stored responses a 304 speaks of (RFC 9111,
// 4.3.4), as indices. They are to be freshened. If there are none the request has
// to be made again without conditions. Stored responses are given the newest
// first, and are those that SetConditions was given.
//
// A 304 without any validator speaks of the only one that was asked about, though
// the RFC has that for one without a validator only: it can't mean another.
func Selected(notModified http.Header, stored ...http.Header) []int {
	tag, modified := notModified.Get("Etag"), notModified.Get("Last-Modified")
	if isEntityTag(tag) && !isWeak(tag) {
		var same []int
		for i, h := range stored {
			if strongMatch(tag, h.Get("Etag")) {
				same = append(same, i)
			}
		}
		return same
	}
	if tag == "" && modified == "" {
		if len(stored) == 1 {
			return []int{0}
		}
		return nil
	}
	for i, h := range stored {
		if tag != "" && weakMatch(tag, h.Get("Etag")) {
			return []int{i}
		}
		if tag == "" && modified == h.Get("Last-Modified") {
			return []int{i}
		}
	}
	return nil
}

// notUpdated are the fields that describe the body that is stored, whatever a
// later header says of another. Compression may have changed it, and a 304 has
// none.
var notUpdated = []string{"Content-Encoding", "Content-Length", "Content-Range"}

// Freshen returns the header of a stored response after a 304 or a HEAD, as a copy
// (RFC 9111, 3.2). The response is then subject to Store again, with the times of
// the request that validated it; and to StoredHeader.
func Freshen(stored, update http.Header, o Options) http.Header {
	h := stored.Clone()
	// An age and a date of the old one would be counted against the new.
	delete(h, "Age")
	delete(h, "Date")

	u := update.Clone()
	RemoveHopByHop(u)
	c := ParseResponse(update, o)
	c.removeLimited(u, o)
	for _, name := range notUpdated {
		delete(u, name)
	}
	for name, values := range u {
		h[name] = values
	}
	return h
}

// HeadAgrees reports whether the answer to a HEAD agrees with a stored response,
// which may then be freshened by it. If not it is stale (RFC 9111, 4.3.5).
func HeadAgrees(stored, head http.Header) bool {
	for _, name := range []string{"Etag", "Last-Modified"} {
		v, was := head.Get(name), stored.Get(name)
		if name == "Etag" && weakMatch(v, was) {
			continue // servers weaken the tag of what they compress, which a HEAD may not ask for
		}
		if v != "" && v != was {
			return false
		}
	}
	length, was := head.Get("Content-Length"), stored.Get("Content-Length")
	return length == "" || was == "" || length == was
}
