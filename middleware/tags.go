package middleware

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// PurgeTag forgets all responses that carry one of the tags
// ([Options.TagHeaders], [Options.Tags]), at a cost that doesn't depend on how
// many they are. What it promises is what Purge does: a run that is under way
// won't bring one back, and a request that starts after PurgeTag returned is not
// answered with what was produced before.
//
// Errors: those of [guard.Guard.DeleteTag].
func (m *Middleware) PurgeTag(ctx context.Context, tags ...string) error {
	return m.guard.DeleteTag(ctx, tags...)
}

// SoftPurgeTag marks them stale instead: see SoftPurge. Of a page that varies it
// may forget all variants. Errors: those of [guard.Guard.ExpireTag].
func (m *Middleware) SoftPurgeTag(ctx context.Context, tags ...string) error {
	return m.guard.ExpireTag(ctx, tags...)
}

// tagsOf are the tags of a response to the request of a run, each once.
func (m *Middleware) tagsOf(r *http.Request, h http.Header) []string {
	var tags []string
	add := func(tag string) {
		if tag != "" && !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	for _, name := range m.opts.TagHeaders {
		for _, line := range h.Values(name) {
			for tag := range strings.FieldsFuncSeq(line, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' }) {
				add(tag)
			}
		}
	}
	if m.opts.Tags != nil {
		for _, tag := range m.opts.Tags(r, h) {
			add(tag)
		}
	}
	return tags
}

// hidesTags reports whether the header of a response, as it is stored, lacks some of
// the tags that the response carries: no-cache="Cache-Tag" keeps that field out, say.
func (m *Middleware) hidesTags(r *http.Request, stored http.Header, tags []string) bool {
	if len(tags) == 0 {
		return false
	}
	told := m.tagsOf(r, stored)
	return slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(told, tag) })
}

// updated is a stored header with the fields of a 304 in place of its own. By it the
// tags are known of a response that is still good: those that the 304 names replace
// the stored ones of the same field, and a 304 without that field keeps them.
func updated(stored, by304 http.Header) http.Header {
	h := stored.Clone()
	maps.Copy(h, by304)
	return h
}

// As package guard bounds them.
const (
	maxTags    = 16
	maxTagSize = 256
)

// mayCarry reports whether a response can be stored with the tags: without one of
// them it would outlive its purge.
func (m *Middleware) mayCarry(tags []string) bool {
	return len(tags) <= maxTags-m.ownTags &&
		!slices.ContainsFunc(tags, func(tag string) bool { return len(tag) > maxTagSize })
}
