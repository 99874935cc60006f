package rfc9111

import (
	"net/http"
	"time"

	"github.com/dunglas/httpsfv"
)

var sharedTargets = []string{"Cdn-Cache-Control"}

func (o *Options) targets() []string {
	if o.Targets == nil && o.Shared {
		return sharedTargets
	}
	return o.Targets
}

// parseTargeted reads a targeted field (RFC 9213, 2.1), a dictionary of
// structured fields. One that is empty or invalid is as good as absent.
func parseTargeted(h http.Header, name string) (ResponseControl, bool) {
	lines := h[name]
	if len(lines) == 0 {
		return ResponseControl{}, false
	}
	dict, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil || len(dict.Names()) == 0 {
		return ResponseControl{}, false
	}
	c := ResponseControl{Field: name}
	for _, key := range dict.Names() {
		member, _ := dict.Get(key)
		c.applyMember(key, member)
	}
	return c, true
}

// applyMember obeys a member of the dictionary. A value of the wrong type is
// invalid for what counts seconds, and no reason to disobey anything else.
func (c *ResponseControl) applyMember(key string, member httpsfv.Member) {
	d := directive{name: key, malformed: true}
	if item, ok := member.(httpsfv.Item); ok {
		switch v := item.Value.(type) {
		case bool:
			if !v {
				return // private=?0 says that it isn't
			}
		case int64:
			c.applySeconds(d, v)
			return
		case string:
			d.value, d.quoted = v, true // of field names; no number, as d is malformed
		}
	}
	c.apply(d)
}

func (c *ResponseControl) applySeconds(d directive, seconds int64) {
	if seconds < 0 {
		c.apply(d)
		return
	}
	v := Delta{Set: true, Value: time.Duration(min(seconds, int64(MaxDelta/time.Second))) * time.Second}
	switch d.name {
	case "max-age":
		c.MaxAge = v
	case "s-maxage":
		c.SMaxAge = v
	case "stale-while-revalidate":
		c.StaleWhileRevalidate = v
	case "stale-if-error":
		c.StaleIfError = v
	default:
		c.apply(d)
	}
}
