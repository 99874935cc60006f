package rfc9111

import (
	"net/http"
	"slices"
)

// ResponseControl is what a response's Cache-Control says, or the targeted field
// that takes its place.
type ResponseControl struct {
	// Field is the name of the field that rules, in its canonical form. It is
	// empty if the response has none.
	Field string

	NoStore, NoTransform            bool
	Public, Private, NoCache        bool // the latter two without field names
	MustRevalidate, ProxyRevalidate bool
	MustUnderstand, Immutable       bool
	PrivateFields, NoCacheFields    []string // private="…" and no-cache="…", canonical names
	MaxAge, SMaxAge                 Delta
	StaleWhileRevalidate            Delta
	StaleIfError                    Delta
}

const cacheControl = "Cache-Control"

// ParseResponse reads a response's Cache-Control, or the targeted field that
// takes its place (RFC 9213, 2.2). Of a directive that is there twice the
// strictest counts, and one that can't be read is as strict as it can be.
func ParseResponse(h http.Header, o Options) ResponseControl {
	for _, name := range o.targets() {
		if c, ok := parseTargeted(h, canonical(name)); ok {
			return c
		}
	}
	var c ResponseControl
	lines := h[cacheControl]
	if len(lines) == 0 {
		return c
	}
	c.Field = cacheControl
	for _, d := range directives(lines) {
		c.apply(d)
	}
	return c
}

func (c *ResponseControl) apply(d directive) {
	switch d.name {
	case "no-store":
		c.NoStore = true
	case "no-transform":
		c.NoTransform = true
	case "public":
		c.Public = true
	case "private":
		d.limit(&c.Private, &c.PrivateFields)
	case "no-cache":
		d.limit(&c.NoCache, &c.NoCacheFields)
	case "must-revalidate":
		c.MustRevalidate = true
	case "proxy-revalidate":
		c.ProxyRevalidate = true
	case "must-understand":
		c.MustUnderstand = true
	case "immutable":
		c.Immutable = true
	case "max-age":
		c.MaxAge.shorter(d.delta())
	case "s-maxage":
		c.SMaxAge.shorter(d.delta())
	case "stale-while-revalidate":
		c.StaleWhileRevalidate.shorter(d.delta())
	case "stale-if-error":
		c.StaleIfError.shorter(d.delta())
	}
}

// limit applies a directive to the fields that it names, or to all.
func (d directive) limit(all *bool, fields *[]string) {
	names, ok := d.fieldNames()
	if !ok {
		*all = true
		return
	}
	for _, name := range names {
		if !slices.Contains(*fields, name) {
			*fields = append(*fields, name)
		}
	}
}

// mayShareAuthorized reports whether the response to a request with
// Authorization may be shared (RFC 9111, 3.5).
func (c *ResponseControl) mayShareAuthorized() bool {
	return c.MustRevalidate || c.SaysShared()
}

// SaysShared reports whether the response is said to be for everybody.
func (c *ResponseControl) SaysShared() bool {
	return c.Public || (c.SMaxAge.Set && !c.SMaxAge.Invalid)
}

// RequestControl is what a request's Cache-Control says. All of it is advice
// (RFC 9111, 5.2.1).
type RequestControl struct {
	NoStore, NoTransform  bool
	NoCache, OnlyIfCached bool
	MaxAge, MinFresh      Delta
	MaxStale              Delta // MaxDelta if any staleness is accepted
	StaleIfError          Delta
}

// ParseRequest reads a request's Cache-Control, or its Pragma if it has none.
func ParseRequest(h http.Header) RequestControl {
	var c RequestControl
	lines, ok := h[cacheControl]
	if !ok {
		// RFC 9111, 5.4.
		for _, d := range directives(h["Pragma"]) {
			c.NoCache = c.NoCache || d.name == "no-cache"
		}
		return c
	}
	for _, d := range directives(lines) {
		c.apply(d)
	}
	return c
}

func (c *RequestControl) apply(d directive) {
	switch d.name {
	case "no-store":
		c.NoStore = true
	case "no-transform":
		c.NoTransform = true
	case "no-cache":
		c.NoCache = true
	case "only-if-cached":
		c.OnlyIfCached = true
	case "max-age":
		c.MaxAge.shorter(d.delta())
	case "min-fresh":
		if v := d.delta(); !v.Invalid {
			c.MinFresh.longer(v)
		}
	case "max-stale":
		v := d.delta()
		if d.value == "" {
			v = Delta{Set: true, Value: MaxDelta}
		}
		if !v.Invalid {
			c.MaxStale.shorter(v)
		}
	case "stale-if-error":
		if v := d.delta(); !v.Invalid {
			c.StaleIfError.shorter(v)
		}
	}
}
