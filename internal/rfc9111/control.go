package rfc9111

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

const cacheControl = "Cache-Control"

// ResponseControl is the content of a response's Cache-Control, or of the targeted field
// that replaces it (RFC 9213, 2.2).
type ResponseControl struct {
	// Field is the canonical name of the field that rules; empty if the response has none.
	Field string

	NoStore, NoTransform, Public, MustUnderstand, Immutable bool
	MustRevalidate, ProxyRevalidate                         bool

	Private, NoCache             bool     // without field names
	PrivateFields, NoCacheFields []string // private="…" and no-cache="…", canonical names

	MaxAge, SMaxAge, StaleWhileRevalidate, StaleIfError Delta
}

// RequestControl is the content of a request's Cache-Control. All of it is advice (RFC
// 9111, 5.2.1).
type RequestControl struct {
	NoStore, NoTransform, NoCache, OnlyIfCached bool

	MaxAge, MinFresh, StaleIfError Delta
	MaxStale                       Delta // MaxDelta if any staleness is accepted
}

// ParseResponse reads ResponseControl. Of a repeated directive the strictest counts, and a
// malformed one is as strict as possible.
func ParseResponse(h http.Header, o Options) ResponseControl {
	targets := o.Targets
	if targets == nil && o.Shared {
		targets = []string{"Cdn-Cache-Control"}
	}
	for _, name := range targets {
		if c := (ResponseControl{Field: canonical(name)}); c.readTargeted(h[c.Field]) {
			return c
		}
	}
	var c ResponseControl
	lines := h[cacheControl]
	if len(lines) > 0 {
		c.Field = cacheControl
	}
	for _, d := range directives(lines) {
		c.apply(d)
		c.restrict(d)
	}
	return c
}

// restrict applies the restrictions in a directive that is several, with semicolons or
// spaces in place of the commas. No lifetime in it counts.
func (c *ResponseControl) restrict(d directive) {
	const separators = "; \t"
	if d.quoted || !strings.ContainsAny(d.name, separators) && !strings.ContainsAny(trim(d.value), separators) {
		return
	}
	for part := range strings.FieldsFuncSeq(d.name+"="+d.value, func(r rune) bool { return strings.ContainsRune(separators+"=", r) }) {
		switch name := strings.ToLower(part); name {
		case "no-store", "private", "no-cache", "must-revalidate", "proxy-revalidate", "max-age", "s-maxage":
			c.apply(directive{name: name, malformed: true})
		}
	}
}

// readTargeted reads a targeted field (RFC 9213, 2.1), a dictionary of structured fields.
// It returns false for an empty or malformed one, which counts as absent.
func (c *ResponseControl) readTargeted(lines []string) bool {
	if len(lines) == 0 {
		return false
	}
	dict, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil || len(dict.Names()) == 0 {
		return false
	}
	for _, key := range dict.Names() {
		member, _ := dict.Get(key)
		item, _ := member.(httpsfv.Item)
		d := directive{name: key, malformed: true}
		switch v := item.Value.(type) {
		case bool:
			if !v {
				continue // private=?0 states that the response is not private
			}
		case int64:
			d.value, d.malformed = strconv.FormatInt(v, 10), false
		case string: // a list of field names; no number, as d is malformed
			d.value, d.quoted = v, true
		}
		c.apply(d)
	}
	return true
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

// SaysShared reports whether the response states that any user may have it.
func (c *ResponseControl) SaysShared() bool {
	return c.Public || (c.SMaxAge.Set && !c.SMaxAge.Invalid)
}

// removeLimited removes the fields that must not be used again: those of no-cache="…",
// and in a shared cache those of private="…".
func (c *ResponseControl) removeLimited(h http.Header, o Options) {
	removeFields(h, c.NoCacheFields)
	if o.Shared {
		removeFields(h, c.PrivateFields)
	}
}

// ParseRequest reads a request's Cache-Control, or its Pragma if it has none.
func ParseRequest(h http.Header) RequestControl {
	var c RequestControl
	lines, ok := h[cacheControl]
	if !ok { // RFC 9111, 5.4
		for _, d := range directives(h["Pragma"]) {
			c.NoCache = c.NoCache || d.name == "no-cache"
		}
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
		if v := d.delta(); !v.Invalid && v.Value >= c.MinFresh.Value {
			c.MinFresh = v
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

type directive struct {
	name      string // lower case
	value     string // without its quotes
	quoted    bool
	malformed bool // white space around =, or text after the closing quote
}

// directives splits the lines of a Cache-Control field (RFC 9111, 5.2).
func directives(lines []string) []directive {
	var ds []directive
	for _, line := range lines {
		for _, element := range splitList(line) {
			name, value, _ := strings.Cut(element, "=")
			d := directive{name: strings.ToLower(trim(name))}
			d.value, d.malformed = unquote(value)
			d.quoted = strings.HasPrefix(value, `"`) && !d.malformed
			d.malformed = d.malformed || trim(name) != name || trim(value) != value
			ds = append(ds, d)
		}
	}
	return ds
}

// limit applies no-cache or private to the fields that it names, or to the whole
// response: without names, with malformed ones, and with an argument without quotes. RFC
// 9111 forbids senders the latter, and private=true does not mean a field named True.
func (d directive) limit(whole *bool, fields *[]string) {
	all, named := *fields, false
	for name := range strings.SplitSeq(d.value, ",") {
		if name = trim(name); name == "" {
			continue
		}
		if named = isToken(name) && name != "*"; !named {
			break
		}
		if name = canonical(name); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	if !d.quoted || !named {
		*whole = true
		return
	}
	*fields = all
}

// A Delta is the argument of a directive that counts seconds.
type Delta struct {
	Set     bool
	Invalid bool          // Set, but not to a number; Value is 0
	Value   time.Duration // 0 to MaxDelta
}

// delta reads the seconds of a directive. A malformed number is as strict as possible:
// no response is fresh for that long (RFC 9111, 4.2.1).
func (d directive) delta() Delta {
	v, ok := parseSeconds(d.value)
	if !ok || d.malformed {
		return Delta{Set: true, Invalid: true}
	}
	return Delta{Set: true, Value: v}
}

// shorter keeps the shorter value of a repeated directive.
func (d *Delta) shorter(other Delta) {
	if !d.Set || other.Invalid || (!d.Invalid && other.Value < d.Value) {
		*d = other
	}
}

func (d *Delta) or(other time.Duration) time.Duration {
	if d.Set {
		return d.Value
	}
	return min(max(other, 0), MaxDelta)
}
