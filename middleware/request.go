package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// headerRules say which headers reach a shared run. Names are canonical.
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
		h.cookies = map[string]bool{}
		for _, name := range o.Cookies {
			h.cookies[name] = true
		}
	}
	return h
}

// identify reports what of a request identifies somebody: Authorization, which
// RFC 9111 has rules for, and anything else.
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

// An asked is a GET or HEAD as the cache sees it.
type asked struct {
	*http.Request
	m     *Middleware
	terms *terms
	query string // of what tells responses apart, sorted by name
	// credentialed: it says who asks. Such requests share with each other only.
	credentialed, personal bool
}

func (m *Middleware) asked(r *http.Request, t *terms) *asked {
	authorized, personal := m.headers.identify(r)
	return &asked{Request: endToEnd(r), m: m, terms: t, query: m.query(r.URL.RawQuery), credentialed: authorized || personal, personal: personal}
}

// endToEnd is a request without what it names in Connection, which is for the next
// hop only (RFC 9110, 7.6.1). A proxy behind this one would not send it on, and a
// response to a request without it is not to be stored for those that have it.
func endToEnd(r *http.Request) *http.Request {
	var h http.Header
	for name := range namesIn(r.Header["Connection"]) {
		if _, there := r.Header[name]; !there || name == "Te" {
			continue
		}
		if h == nil {
			h = r.Header.Clone()
		}
		delete(h, name)
	}
	if h == nil {
		return r
	}
	r2 := *r
	r2.Header = h
	return &r2
}

// query is the part of a query that tells responses apart: parameters sorted by
// name, those of one name in their order, each as it was written.
func (m *Middleware) query(raw string) string {
	if raw == "" || m.params == nil && !strings.Contains(raw, "&") {
		return raw
	}
	type param struct{ name, text string }
	var params []param
	for text := range strings.SplitSeq(raw, "&") {
		name, _, _ := strings.Cut(text, "=")
		if decoded, err := url.QueryUnescape(name); err == nil {
			name = decoded
		}
		if text == "" || m.params != nil && !m.params[name] {
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

// scheme is that of the request's target as this server sees it.
func scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// target names the page: an absolute URL, with as much of the query as counts.
func target(scheme, host, path, query string) string {
	var b strings.Builder
	b.Grow(len(scheme) + len(host) + len(path) + len(query) + 4)
	b.WriteString(scheme)
	b.WriteString("://")
	b.WriteString(canonicalHost(scheme, host))
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

func canonicalHost(scheme, host string) string {
	host = strings.ToLower(host)
	if scheme == "http" {
		return strings.TrimSuffix(host, ":80")
	}
	return strings.TrimSuffix(host, ":443")
}

// host is the site's.
func (m *Middleware) host(of string) string {
	if m.opts.Host != "" {
		return m.opts.Host
	}
	return of
}

func (a *asked) target() string {
	return target(scheme(a.Request), a.m.host(a.Host), pathOf(a.Request), a.query)
}

// pathOf is the path of a page's URL. A prefix that http.StripPrefix has taken away is
// part of it again, or what is mounted at two places would share pages. Clients may
// write a target in several ways: what is compared is what they mean.
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

// Keys of the guard begin with a letter that says what is stored under them. A
// target has no line break, so none can be taken for another.
const (
	keyShared       = "s " // responses to requests that don't say who asks
	keyCredentialed = "c " // responses to those that do
	keyEpoch        = "e " // see epochs
)

// key is the guard's, for a page whose epoch is known; empty if there are none.
func (a *asked) key(epoch string) string {
	kind := keyShared
	if a.credentialed {
		kind = keyCredentialed
	}
	key := kind + a.target()
	if epoch != "" {
		key += "\n" + epoch + a.listed()
	}
	return key
}

// variantKey is that of one variant of the page (Vary).
func variantKey(key string, ix *index, variant string) string {
	return key + "\n" + ix.suffix(variant)
}

// listed is a digest of what the options make part of the key.
func (a *asked) listed() string {
	h := sha256.New()
	add := func(s string) {
		h.Write(strconv.AppendInt(nil, int64(len(s)), 10))
		h.Write([]byte{':'})
		h.Write([]byte(s))
	}
	for _, name := range a.m.headers.keyed {
		add(name)
		add(strconv.Itoa(len(a.Header[name])))
		for _, v := range a.Header[name] {
			add(v)
		}
	}
	add("Cookie")
	add(a.cookie())
	if a.m.opts.Key != nil {
		add(a.m.opts.Key(a.Request))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// cookie is the Cookie of a shared run: the listed ones, by name; or all.
func (a *asked) cookie() string {
	if a.m.headers.cookies == nil {
		return strings.Join(a.Header["Cookie"], "; ")
	}
	if len(a.m.headers.cookies) == 0 {
		return ""
	}
	var kept []string
	for _, line := range a.Header["Cookie"] {
		for part := range strings.SplitSeq(line, ";") {
			part = strings.TrimSpace(part)
			name, _, _ := strings.Cut(part, "=")
			if a.m.headers.cookies[strings.TrimSpace(name)] {
				kept = append(kept, part)
			}
		}
	}
	slices.Sort(kept)
	return strings.Join(kept, "; ")
}

// header is that of a shared run. nominated are the names that the page is known
// to vary on: they are part of its key.
func (a *asked) header(nominated []string) http.Header {
	h := make(http.Header, len(a.Header))
	rules := &a.m.headers
	for name, values := range a.Header {
		switch {
		case name == "Cookie":
			if rules.cookies != nil || a.credentialed {
				if c := a.cookie(); c != "" {
					h["Cookie"] = []string{c}
				}
			}
		case rules.credentials[name]:
			if a.credentialed {
				h[name] = slices.Clone(values)
			}
		case rules.all, rules.pass[name], slices.Contains(nominated, name):
			h[name] = slices.Clone(values)
		}
	}
	delete(h, "Connection")
	rfc9111.RemoveConditions(h)
	if a.m.opts.Compress {
		delete(h, "Accept-Encoding")
	}
	return h
}

// withholds reports whether a shared run was not given a header that the response
// now turns out to vary on, so that it isn't this request's answer.
func (a *asked) withholds(run *http.Request, names []string) bool {
	full := a.header(names)
	for _, name := range names {
		if !slices.Equal(full[name], run.Header[name]) {
			return true
		}
	}
	return false
}

// shared is the request for a run that may answer others.
func (a *asked) shared(ctx context.Context, nominated []string) *http.Request {
	r := a.Clone(context.WithValue(ctx, sharedKey{}, !a.credentialed))
	// As it is in the key: how one client spells it is nothing for the others.
	r.Method, r.Host = http.MethodGet, a.sharedHost()
	r.Header = a.header(nominated)
	r.URL.RawQuery, r.URL.ForceQuery = a.query, false
	r.URL.Fragment, r.URL.RawFragment, r.URL.User = "", "", nil
	if r.URL.Host != "" {
		r.URL.Host = r.Host
	}
	if r.URL.Path == "" && pathOf(a.Request) == "" { // else it is what a mount has left
		r.URL.Path = "/" // RFC 9110, 4.2.3
	}
	if r.URL.EscapedPath() != r.URL.RawPath {
		r.URL.RawPath = ""
	}
	r.RequestURI = r.URL.RequestURI()
	r.Body, r.GetBody, r.ContentLength = http.NoBody, nil, 0
	r.Trailer, r.TransferEncoding, r.Close = nil, nil, false
	r.Form, r.PostForm, r.MultipartForm = nil, nil, nil
	if !a.m.headers.all {
		r.RemoteAddr = ""
	}
	a.m.addVia(r.Header, r.ProtoMajor, r.ProtoMinor)
	return r
}

// sharedHost is the host as it is in the key.
func (a *asked) sharedHost() string { return canonicalHost(scheme(a.Request), a.m.host(a.Host)) }

// varying is the request as far as Vary looks at it.
func (a *asked) varying(nominated []string) *http.Request {
	return &http.Request{Method: http.MethodGet, Host: a.sharedHost(), Header: a.header(nominated)}
}

type sharedKey struct{}

// Shared reports whether a request's context is that of a run which was given
// only what requests for its page have in common, and whose response may answer
// them all. Of other runs, the context is their client's business: they were given
// credentials, and their response is shared, if it says public, with others who
// gave some.
func Shared(ctx context.Context) bool {
	shared, _ := ctx.Value(sharedKey{}).(bool)
	return shared
}

// addVia adds this hop (RFC 9110, 7.6.3).
func (m *Middleware) addVia(h http.Header, major, minor int) {
	if m.opts.Via == "" {
		return
	}
	version := strconv.Itoa(major)
	if major < 2 {
		version += "." + strconv.Itoa(minor)
	}
	h["Via"] = append(slices.Clip(h["Via"]), version+" "+m.opts.Via)
}

// bypasses reports whether a GET or HEAD is none of the cache's business: it has
// a body, wants another protocol, or is for what has no URL that tells it apart.
func bypasses(r *http.Request) bool {
	return r.ContentLength != 0 || len(r.Header["Upgrade"]) > 0 ||
		r.URL.Opaque != "" || r.URL.Scheme != "" && r.URL.Scheme != scheme(r) || strings.ContainsAny(r.Host, "/?#@\\")
}

// hasPrecondition reports whether a request may be answered 412, which is the
// origin's to say (RFC 9111, 4.3.2): a shared run isn't told of its condition.
func hasPrecondition(h http.Header) bool {
	return len(h["If-Match"]) > 0 || len(h["If-Unmodified-Since"]) > 0
}
