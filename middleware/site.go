package middleware

import (
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A site is the part of the options that is about requests: the terms that rules give
// them, and the parts that tell their responses apart.
type site struct {
	opts    *Options
	rules   []matcher
	usual   terms
	headers headerRules
	params  map[string]bool // of the query; nil: all
	epochs  bool            // keys contain more than the target
}

func newSite(o *Options) *site {
	s := &site{
		opts: o, rules: matchersOf(o.Rules), usual: terms{ttl: o.TTL, stale: o.Stale}, headers: headerRulesOf(o),
		epochs: len(o.Headers) > 0 || len(o.Cookies) > 0 || o.Key != nil,
	}
	if o.Query != nil {
		s.params = setOf(o.Query)
	}
	return s
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// terms are those of the rule that a request matches, or of the options.
type terms struct {
	bypass     bool
	ttl, stale time.Duration
}

// A matcher is a compiled Rule.
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

// muxFor returns a mux with one pattern, so that net/http interprets it.
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

// termsFor returns the terms of the first rule that matches.
func (s *site) termsFor(r *http.Request) *terms {
	for i := range s.rules {
		if s.rules[i].matches(r) {
			return &s.rules[i].terms
		}
	}
	return &s.usual
}

// rfc returns the options of the rules of HTTP for a response with a status.
func (s *site) rfc(t *terms, status int) rfc9111.Options {
	o := rfc9111.Options{Shared: true, AllowSetCookie: s.opts.StoreSetCookie, Heuristic: s.opts.Heuristic}
	switch status {
	case 200, 203, 300, 301, 308:
		o.Lifetime = t.ttl
		o.StaleWhileRevalidate, o.StaleIfError = t.stale, t.stale
	case 404, 410:
		o.Lifetime = min(t.ttl, s.opts.NegativeTTL)
	}
	return o
}

// headerRules say which headers of a request reach a shared run. Names are canonical.
type headerRules struct {
	all         bool // see AllHeaders
	pass        map[string]bool
	keyed       []string
	credentials map[string]bool
	cookies     map[string]bool // nil: any cookie is personal
}

func headerRulesOf(o *Options) headerRules {
	h := headerRules{pass: map[string]bool{}, credentials: map[string]bool{}}
	for _, name := range o.Forward {
		if name == AllHeaders {
			h.all = true
		}
		h.pass[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	for _, name := range o.Headers {
		name = textproto.CanonicalMIMEHeaderKey(name)
		h.keyed = append(h.keyed, name)
		h.pass[name] = true
	}
	slices.Sort(h.keyed)
	h.keyed = slices.Compact(h.keyed)
	for _, name := range slices.Concat(credentials, o.Credentials) {
		if name = textproto.CanonicalMIMEHeaderKey(name); !slices.Contains(h.keyed, name) {
			h.credentials[name] = true
		}
	}
	if o.Cookies != nil {
		h.cookies = setOf(o.Cookies)
	}
	return h
}

// identify reports whether a request identifies somebody: by Authorization, which RFC 9111
// has rules for, and by anything else (personal).
func (h *headerRules) identify(r *http.Request) (authorized, personal bool) {
	for name := range r.Header {
		switch {
		case name == "Authorization":
			authorized = true
		case name == "Cookie" && h.cookies == nil, h.credentials[name]:
			personal = true
		}
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		personal = true
	}
	return authorized, personal
}

// query returns the part of a query that tells responses apart: the parameters as they are
// written, sorted by name.
func (s *site) query(raw string) string {
	if raw == "" || s.params == nil && !strings.Contains(raw, "&") {
		return raw
	}
	type param struct{ name, text string }
	var params []param
	for text := range strings.SplitSeq(raw, "&") {
		name, _, _ := strings.Cut(text, "=")
		if decoded, err := url.QueryUnescape(name); err == nil {
			name = decoded
		}
		if text == "" || s.params != nil && !s.params[name] {
			continue
		}
		params = append(params, param{name, text})
	}
	slices.SortStableFunc(params, func(a, b param) int { return strings.Compare(a.name, b.name) })
	texts := make([]string, len(params))
	for i, p := range params {
		texts[i] = p.text
	}
	return strings.Join(texts, "&")
}

// host is the name of the site for a request's host.
func (s *site) host(of string) string {
	if s.opts.Host != "" {
		return s.opts.Host
	}
	return of
}

// addVia adds this hop (RFC 9110, 7.6.3).
func (s *site) addVia(h http.Header, major, minor int) {
	if s.opts.Via == "" {
		return
	}
	version := strconv.Itoa(major)
	if major < 2 {
		version += "." + strconv.Itoa(minor)
	}
	h["Via"] = append(slices.Clip(h["Via"]), version+" "+s.opts.Via)
}

// says is the Cache-Control of a request, as far as the options heed it.
func (s *site) says(h http.Header) rfc9111.RequestControl {
	if len(h["Cache-Control"]) == 0 && len(h["Pragma"]) == 0 {
		return rfc9111.RequestControl{}
	}
	c := rfc9111.ParseRequest(h)
	if s.opts.IgnoreRequestDirectives {
		return rfc9111.RequestControl{NoStore: c.NoStore}
	}
	return c
}

// withVia returns a request with this hop added.
func (s *site) withVia(r *http.Request) *http.Request {
	if s.opts.Via == "" {
		return r
	}
	r2 := *r
	r2.Header = r.Header.Clone()
	s.addVia(r2.Header, r.ProtoMajor, r.ProtoMinor)
	return &r2
}

// scheme is the scheme of the request's target as this server sees it.
func scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// target names the page: an absolute URL, with the parameters that count.
func target(scheme, host, path, query string) string {
	var b strings.Builder
	b.Grow(len(scheme) + len(host) + len(path) + len(query) + 4)
	b.WriteString(scheme)
	b.WriteString("://")
	b.WriteString(httpcache.CanonicalHost(scheme, host))
	if path == "" {
		path = "/"
	}
	b.WriteString(path)
	if query != "" {
		b.WriteByte('?')
		b.WriteString(query)
	}
	return b.String()
}

// pathOf is the path of a page's URL. It includes a prefix that http.StripPrefix has taken
// away, or handlers mounted at two places would share pages. Clients may write a target in
// several ways, so the decoded paths are compared.
func pathOf(r *http.Request) string {
	path := r.URL.EscapedPath()
	if whole, _, _ := strings.Cut(r.RequestURI, "?"); whole == path {
		return path
	}
	u, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return path
	}
	prefix, ok := strings.CutSuffix(u.Path, r.URL.Path)
	if !ok || prefix == "" {
		return path
	}
	return (&url.URL{Path: prefix}).EscapedPath() + path
}

// Keys of the guard begin with the kind of their entry. A target has no line break, so no
// key can be mistaken for another.
const (
	keyShared       = "s " // responses to requests without credentials
	keyCredentialed = "c " // responses to requests with credentials
	keyEpoch        = "e " // see pageKey
)

// keysOf are the keys that lead to all pages of a URL.
func (s *site) keysOf(u *url.URL) []string {
	t := target(u.Scheme, s.host(u.Host), u.EscapedPath(), s.query(u.RawQuery))
	if s.epochs {
		return []string{keyEpoch + t}
	}
	return []string{keyShared + t, keyCredentialed + t}
}
