package middleware

import (
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/internal/httpcache"
)

// terms are those of the rule that a request matches, or of the options.
type terms struct {
	bypass                   bool
	ttl, stale, staleIfError time.Duration
	headers                  *headerRules
	key                      func(*http.Request) string // nil: none
	epochs                   bool                       // keys contain more than the target
}

// termsOf returns the terms of a rule, which has the options' values in fields that it
// leaves unset.
func termsOf(o *Options, r *Rule) *terms {
	headers, cookies, key := o.Headers, o.Cookies, o.Key
	if r.Headers != nil {
		headers = r.Headers
	}
	if r.Cookies != nil {
		cookies = r.Cookies
	}
	if r.Key != nil {
		key = r.Key
	}
	return &terms{
		bypass: r.Bypass, ttl: r.TTL, stale: r.Stale, staleIfError: max(r.Stale, r.StaleIfError),
		headers: headerRulesOf(o, headers, cookies), key: key,
		epochs: len(headers) > 0 || len(cookies) > 0 || key != nil,
	}
}

// A matcher is a compiled Rule.
type matcher struct {
	mux   *http.ServeMux // nil: no pattern
	match func(*http.Request) bool
	terms *terms
}

// isOperational reports whether a request is for an endpoint that tells about one process.
// A stored answer would be that of another process, or of another time.
func isOperational(r *http.Request) bool {
	switch r.URL.Path {
	case "/metrics", "/health", "/healthz", "/livez", "/readyz", "/-/healthy", "/-/ready", "/debug/vars", "/debug/requests", "/debug/events":
		return true
	}
	return strings.HasPrefix(r.URL.Path, "/debug/pprof")
}

// matchersOf compiles the rules, and one that bypasses operational paths.
func matchersOf(o *Options) []matcher {
	ms := make([]matcher, len(o.Rules), len(o.Rules)+1)
	for i := range o.Rules {
		r := &o.Rules[i]
		mux, _ := muxFor(r.Pattern)
		ms[i] = matcher{mux, r.Match, termsOf(o, r)}
	}
	return append(ms, matcher{nil, isOperational, termsOf(o, &Rule{Bypass: true})})
}

// muxFor returns a mux with one pattern, so that net/http interprets it; nil for an empty
// one.
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

// termsFor returns the terms of the first rule that matches. Rules see the host in the
// spelling that keys have: a client must not choose the rule by its spelling.
func (s *site) termsFor(r *http.Request) *terms {
	if len(s.rules) > 1 { // the last one sees only paths
		if host := strings.TrimSuffix(httpcache.CanonicalHost(scheme(r), r.Host), "."); host != r.Host {
			r2 := *r
			r2.Host = host
			r = &r2
		}
	}
	for i := range s.rules {
		if s.rules[i].matches(r) {
			return s.rules[i].terms
		}
	}
	return s.usual
}

// headerRules say which headers of a request reach a shared run. Names are canonical.
type headerRules struct {
	all     bool // see AllHeaders
	pass    map[string]bool
	keyed   []string
	passed  []string        // the names in pass, sorted, without those in keyed
	cookies map[string]bool // nil: any cookie is personal

	credentials map[string]bool // by name, whether it identifies a user; others are judged by their name
	judged      sync.Map        // by name: bool
	judgements  atomic.Int32    // in judged
}

func headerRulesOf(o *Options, keyed, cookies []string) *headerRules {
	h := &headerRules{pass: map[string]bool{}, credentials: map[string]bool{}}
	for _, name := range o.Forward {
		if name == AllHeaders {
			h.all = true
			continue
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		h.pass[name], h.credentials[name] = true, false
	}
	for _, name := range slices.Concat(credentials, o.Credentials) {
		h.credentials[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	for _, name := range keyed {
		name = textproto.CanonicalMIMEHeaderKey(name)
		h.keyed = append(h.keyed, name)
		h.pass[name], h.credentials[name] = true, false
	}
	slices.Sort(h.keyed)
	h.keyed = slices.Compact(h.keyed)
	for name := range h.pass {
		if !slices.Contains(h.keyed, name) {
			h.passed = append(h.passed, name)
		}
	}
	slices.Sort(h.passed)
	if cookies != nil {
		h.cookies = setOf(cookies)
	}
	return h
}

// maxJudged bounds the names that are remembered: clients choose them.
const maxJudged = 512

// isCredential reports whether a header other than Cookie identifies a user.
func (h *headerRules) isCredential(name string) bool {
	if is, ok := h.credentials[name]; ok {
		return is
	}
	if is, ok := h.judged.Load(name); ok {
		return is.(bool)
	}
	is := httpcache.IdentifiesUser(textproto.CanonicalMIMEHeaderKey(name))
	if h.judgements.Load() < maxJudged {
		h.judgements.Add(1)
		h.judged.Store(name, is)
	}
	return is
}

// identifies reports whether a request identifies its user.
func (h *headerRules) identifies(r *http.Request) bool {
	for name := range r.Header {
		if name == "Cookie" && h.cookies == nil || name != "Cookie" && h.isCredential(name) {
			return true
		}
	}
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0
}
