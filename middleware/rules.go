package middleware

import (
	"fmt"
	"net/http"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// terms are what applies to a request that a rule has matched, or none.
type terms struct {
	bypass     bool
	ttl, stale time.Duration
}

// A matcher is a Rule, made ready.
type matcher struct {
	mux   *http.ServeMux // nil: no pattern
	match func(*http.Request) bool
	terms terms
}

func matchersOf(rules []Rule) []matcher {
	ms := make([]matcher, len(rules))
	for i, r := range rules {
		mux, _ := muxFor(r.Pattern)
		ms[i] = matcher{mux, r.Match, terms{r.Bypass, r.TTL, r.Stale}}
	}
	return ms
}

// muxFor is a mux that knows one pattern: the library's own reading of it.
func muxFor(pattern string) (mux *http.ServeMux, err error) {
	if pattern == "" {
		return nil, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	mux = http.NewServeMux()
	mux.Handle(pattern, http.NotFoundHandler())
	return mux, nil
}

func (m *matcher) matches(r *http.Request) bool {
	if m.mux != nil {
		if _, pattern := m.mux.Handler(r); pattern == "" {
			return false
		}
	}
	return m.match == nil || m.match(r)
}

// termsFor are those of the first rule that matches.
func (m *Middleware) termsFor(r *http.Request) *terms {
	for i := range m.rules {
		if m.rules[i].matches(r) {
			return &m.rules[i].terms
		}
	}
	return &m.usual
}

// rfc is what the rules of HTTP are told for a response of a status.
func (m *Middleware) rfc(t *terms, status int) rfc9111.Options {
	o := rfc9111.Options{Shared: true, AllowSetCookie: m.opts.StoreSetCookie, Heuristic: m.opts.Heuristic}
	switch status {
	case 200, 203, 300, 301, 308:
		o.Lifetime = t.ttl
		o.StaleWhileRevalidate, o.StaleIfError = t.stale, t.stale
	case 404, 410:
		o.Lifetime = min(t.ttl, m.opts.NegativeTTL)
	}
	return o
}
