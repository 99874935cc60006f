package budget

import (
	"net/http"
	"time"

	"github.com/dunglas/httpsfv"
)

// rateLimit reads RateLimit and RateLimit-Policy as structured fields: the quota
// of which least is left.
//
//	RateLimit-Policy: "minute";q=100;w=60, "day";q=5000;w=86400
//	RateLimit: "minute";r=20;t=23, "day";r=4100;t=70000
//
// and, in draft 07,
//
//	RateLimit: limit=100, remaining=50, reset=5
func rateLimit(h http.Header, _ time.Time) (Advice, bool) {
	fields := h.Values("RateLimit")
	if len(fields) == 0 {
		return Advice{}, false
	}
	if d, err := httpsfv.UnmarshalDictionary(fields); err == nil {
		if a, ok := ofDictionary(d); ok {
			return a, true
		}
	}
	limits, err := httpsfv.UnmarshalList(fields)
	if err != nil {
		return Advice{}, false
	}
	policies := policiesOf(h)
	var least Advice
	found := false
	for _, member := range limits {
		item, ok := member.(httpsfv.Item)
		if !ok {
			continue
		}
		name, _ := policyName(item)
		policy := policies[name]
		remaining, ok := param(item, "r")
		if !ok || policy.otherUnits {
			continue
		}
		a := Advice{Remaining: units(remaining), Limit: policy.quota, Window: policy.window, Reset: policy.window}
		if t, ok := param(item, "t"); ok {
			a.Reset = wholeSeconds(t)
		}
		if !found || a.Remaining < least.Remaining || a.Remaining == least.Remaining && a.Reset > least.Reset {
			least, found = a, true
		}
	}
	return least, found
}

// ofDictionary is draft 07.
func ofDictionary(d *httpsfv.Dictionary) (Advice, bool) {
	value := func(name string) (int64, bool) {
		member, ok := d.Get(name)
		if !ok {
			return 0, false
		}
		item, ok := member.(httpsfv.Item)
		if !ok {
			return 0, false
		}
		n, ok := item.Value.(int64)
		return n, ok && n >= 0
	}
	remaining, ok := value("remaining")
	if !ok {
		return Advice{}, false
	}
	a := Advice{Remaining: units(remaining)}
	if n, ok := value("limit"); ok {
		a.Limit = units(n)
	}
	if n, ok := value("reset"); ok {
		a.Reset = wholeSeconds(n)
	}
	return a, true
}

// A policy is one of RateLimit-Policy.
type policy struct {
	quota      int
	window     time.Duration
	otherUnits bool // it doesn't count requests: bytes, say
}

// policiesOf reads RateLimit-Policy, by name. Up to draft 06 a policy's name is
// its quota.
func policiesOf(h http.Header) map[string]policy {
	list, err := httpsfv.UnmarshalList(h.Values("RateLimit-Policy"))
	if err != nil {
		return nil
	}
	all := map[string]policy{}
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		if !ok {
			continue
		}
		name, quota := policyName(item)
		p := policy{quota: units(quota)}
		if q, ok := param(item, "q"); ok {
			p.quota = units(q)
		}
		if w, ok := param(item, "w"); ok {
			p.window = wholeSeconds(w)
		}
		if unit, ok := item.Params.Get("qu"); ok && unit != "requests" && unit != "request" {
			p.otherUnits = true
		}
		all[name] = p
	}
	return all
}

// policyName is what names a policy: a string, a token in some drafts, or, before
// policies had names, its quota.
func policyName(item httpsfv.Item) (name string, quota int64) {
	switch v := item.Value.(type) {
	case string:
		return v, 0
	case httpsfv.Token:
		return string(v), 0
	case int64:
		return "", max(0, v)
	}
	return "", 0
}

// param is a parameter that is an integer and not negative.
func param(item httpsfv.Item, name string) (int64, bool) {
	if item.Params == nil {
		return 0, false
	}
	v, _ := item.Params.Get(name)
	n, ok := v.(int64)
	return n, ok && n >= 0
}

// units and wholeSeconds make sane what is not negative.
func units(n int64) int { return int(min(n, maxUnits)) }

func wholeSeconds(n int64) time.Duration {
	return time.Duration(min(n, int64(maxAdvice/time.Second))) * time.Second
}
