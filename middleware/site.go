package middleware

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A site is the part of the options that is about requests: the terms that rules give
// them, and their parts that tell responses apart.
type site struct {
	opts   *Options
	rules  []matcher
	usual  *terms
	params map[string]bool // of the query; nil: all
	plain  bool            // some terms have no epochs
	epochs bool            // some terms have epochs
}

func newSite(o *Options) *site {
	s := &site{opts: o, rules: matchersOf(o)}
	s.usual = termsOf(o, &Rule{TTL: o.TTL, Stale: o.Stale, StaleIfError: o.StaleIfError})
	s.add(s.usual)
	for i := range s.rules {
		s.add(s.rules[i].terms)
	}
	if o.Query != nil {
		s.params = setOf(o.Query)
	}
	return s
}

// add notes the kinds of keys that requests with the terms have.
func (s *site) add(t *terms) {
	s.plain = s.plain || !t.epochs
	s.epochs = s.epochs || t.epochs
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// rfc returns the options of the rules of HTTP for a response with a status.
func (s *site) rfc(t *terms, status int) rfc9111.Options {
	o := rfc9111.Options{Shared: true, AllowSetCookie: s.opts.StoreSetCookie, Heuristic: s.opts.Heuristic}
	switch status {
	case 200, 203, 300, 301, 308:
		o.Lifetime = t.ttl
		o.StaleWhileRevalidate, o.StaleIfError = t.stale, t.staleIfError
	case 404, 410:
		o.Lifetime = min(t.ttl, s.opts.NegativeTTL)
	}
	return o
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

// target names the page: an absolute URL, with the parameters that count. A long one ends in
// a digest. It follows the kind of a key.
func target(kind, scheme, host, path, query string) string {
	var b strings.Builder
	b.Grow(len(kind) + len(scheme) + len(host) + len(path) + len(query) + 5)
	b.WriteString(kind)
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
	key := b.String()
	if page := key[len(kind):]; len(page) > httpcache.MaxKey {
		return kind + httpcache.ShortKey(page)
	}
	return key
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
	keyPosted       = "p " // see posted
)

// keysOf are the keys that lead to all pages of a URL.
func (s *site) keysOf(u *url.URL) []string {
	t := target("", u.Scheme, s.host(u.Host), u.EscapedPath(), s.query(u.RawQuery))
	var keys []string
	if s.opts.StorePost {
		keys = append(keys, keyPosted+t) // before the others: see posted
	}
	if s.epochs {
		keys = append(keys, keyEpoch+t)
	}
	if s.plain {
		keys = append(keys, keyShared+t, keyCredentialed+t)
	}
	return keys
}
