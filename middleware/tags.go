package middleware

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A tagger knows the tags of responses.
type tagger struct {
	headers []string
	more    func(*http.Request, http.Header) []string // nil: none
	own     int                                       // number of tags that the guard's policy adds
}

// of returns the tags of a response to the request of a run, each once.
func (t *tagger) of(r *http.Request, h http.Header) []string {
	var tags []string
	add := func(tag string) {
		if tag != "" && !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	for _, name := range t.headers {
		for _, line := range h.Values(name) {
			for tag := range strings.FieldsFuncSeq(line, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' }) {
				add(tag)
			}
		}
	}
	if t.more != nil {
		for _, tag := range t.more(r, h) {
			add(tag)
		}
	}
	return tags
}

// hides reports whether the stored header of a response lacks some of the tags that
// the response carries: no-cache="Cache-Tag" keeps that field out, say.
func (t *tagger) hides(r *http.Request, stored http.Header, tags []string) bool {
	if len(tags) == 0 {
		return false
	}
	told := t.of(r, stored)
	return slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(told, tag) })
}

// updated is a stored header with the fields of a 304 in place of its own. It tells the tags
// of the response from now on: a 304 without a tag field keeps the stored tags of that
// field.
func updated(stored, by304 http.Header) http.Header {
	h := stored.Clone()
	maps.Copy(h, by304)
	return h
}

// The bounds of package guard.
const (
	maxTags    = 16
	maxTagSize = 256
)

// fit reports whether a response can be stored with the tags. Without one of them it
// would outlive its purge.
func (t *tagger) fit(tags []string) bool {
	return len(tags) <= maxTags-t.own &&
		!slices.ContainsFunc(tags, func(tag string) bool { return len(tag) > maxTagSize })
}

// setConditions asks the handler for a 304 if it can know the stale response. The handler
// does not know an ETag that MakeETag added, and would ignore If-Modified-Since because of it
// (RFC 9110, 13.1.3). If its header does not show its tags, a response is fetched in full.
func setConditions(h http.Header, stale *httpcache.Page, makesETag bool) bool {
	if stale.HidesTags {
		return false
	}
	about := stale.Header
	if makesETag && about.Get("Etag") == madeETag(stale.Body) {
		about = about.Clone()
		delete(about, "Etag")
	}
	return rfc9111.SetConditions(h, about)
}

// madeETag is the ETag of a body that has none from its handler.
func madeETag(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
}
