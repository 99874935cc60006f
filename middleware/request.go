package middleware

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// An asked is a GET or HEAD as the cache sees it. It does not change.
type asked struct {
	*http.Request
	site  *site
	terms *terms
	query string // the parameters that tell responses apart, sorted by name
	named string // the kind of its key, and the page's name
	// credentialed requests identify their user, and share only with each other.
	credentialed bool

	common sharedContext // of runs that may answer other requests
}

// read fills in all that follows from the request, the site and the terms.
func (a *asked) read() {
	r, kind := a.Request, keyShared
	a.Request = endToEnd(r)
	a.query = a.site.query(r.URL.RawQuery)
	if a.credentialed = a.terms.headers.identifies(r); a.credentialed && !a.mixes() {
		kind = keyCredentialed
	}
	a.named = target(kind, scheme(r), a.site.host(r.Host), pathOf(r), a.query)
	a.common = sharedContext{r.Context(), a.site}
}

// page is the page's name: see target.
func (a *asked) page() string { return a.named[len(keyShared):] }

// endToEnd returns a request without the fields that it names in Connection, which are for
// the next hop only (RFC 9110, 7.6.1). A proxy behind this cache would not send them on, and
// a response to a request without them must not be stored for requests with them.
func endToEnd(r *http.Request) *http.Request {
	var h http.Header
	for name := range httpcache.NamesIn(r.Header["Connection"]) {
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

// key is the guard's key of the page. epoch is empty if there are none.
func (a *asked) key(epoch string) string {
	if epoch == "" {
		return a.named
	}
	return a.named + "\n" + epoch + a.listed()
}

// mixes reports whether the request has credentials and shares its pages with requests that
// have none: see Options.TrustOrigin.
func (a *asked) mixes() bool { return a.credentialed && a.site.opts.TrustOrigin }

// listed is a digest of the parts of the request that the options make part of the key.
func (a *asked) listed() string {
	h := sha256.New()
	add := func(s string) {
		h.Write(strconv.AppendInt(nil, int64(len(s)), 10))
		h.Write([]byte{':'})
		h.Write([]byte(s))
	}
	for _, name := range a.terms.headers.keyed {
		add(name)
		add(strconv.Itoa(len(a.Header[name])))
		for _, v := range a.Header[name] {
			add(v)
		}
	}
	if a.terms.headers.cookies != nil { // else all pages of requests with a cookie would differ
		cookie, _ := a.cookie()
		add("Cookie")
		add(cookie)
	}
	if a.terms.key != nil {
		add(a.terms.key(a.Request))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// cookie is the Cookie of a shared run: the listed cookies, sorted; or all. stripped reports
// whether there are others: the handler may take the client for one that is not logged in.
func (a *asked) cookie() (kept string, stripped bool) {
	listed := a.terms.headers.cookies
	if listed == nil {
		return strings.Join(a.Header["Cookie"], "; "), false
	}
	var parts []string
	for _, line := range a.Header["Cookie"] {
		for part := range strings.SplitSeq(line, ";") {
			part = strings.TrimSpace(part)
			name, _, _ := strings.Cut(part, "=")
			switch {
			case listed[strings.TrimSpace(name)]:
				parts = append(parts, part)
			case part != "":
				stripped = true
			}
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "; "), stripped
}

// isStripped reports whether a shared run is not given cookies that this request has.
func (a *asked) isStripped() bool {
	_, stripped := a.cookie()
	return stripped
}

// header is the header of a shared run. nominated are the names that the page is known to
// vary on, which are part of its key.
func (a *asked) header(nominated []string) http.Header {
	h := make(http.Header, len(a.Header))
	rules := a.terms.headers
	for name, values := range a.Header {
		switch {
		case name == "Cookie":
			if rules.cookies != nil || a.credentialed {
				if c, _ := a.cookie(); c != "" {
					h["Cookie"] = []string{c}
				}
			}
		case rules.isCredential(name):
			if a.credentialed {
				h[name] = slices.Clone(values)
			}
		case name == "Accept-Encoding" && (rules.all || rules.pass[name] || slices.Contains(nominated, name)):
			if known := knownEncodings(values); known != "" {
				h[name] = []string{known}
			}
		case name == "Accept-Language" && (rules.all || rules.pass[name] || slices.Contains(nominated, name)):
			h[name] = slices.Clone(values)
			if field, ok := rfc9111.Languages(values); ok {
				h[name] = []string{field} // as in the variant's key: no other spelling chooses its response
			}
		case rules.all, rules.pass[name], slices.Contains(nominated, name), isTrace(name, values):
			h[name] = slices.Clone(values)
		}
	}
	delete(h, "Connection")
	rfc9111.RemoveConditions(h)
	if a.site.opts.Compress {
		delete(h, "Accept-Encoding")
	}
	return h
}

// misses reports whether a shared run was not given a header of this request that its
// response varies on, so that the response does not answer this request.
func (a *asked) misses(run *http.Request, names []string) bool {
	full := a.header(names)
	for _, name := range names {
		if !slices.Equal(full[name], run.Header[name]) {
			return true
		}
	}
	return false
}

// shared is the request for a run that may answer other requests.
func (a *asked) shared(ctx context.Context, nominated []string) *http.Request {
	r := a.Clone(ctx)
	// The target is as in the key: other requests may spell it otherwise.
	r.Method, r.Host = http.MethodGet, a.sharedHost()
	r.Header = a.header(nominated)
	r.URL.RawQuery, r.URL.ForceQuery = a.query, false
	r.URL.Fragment, r.URL.RawFragment, r.URL.User = "", "", nil
	if r.URL.Host != "" {
		r.URL.Host = r.Host
	}
	if r.URL.Path == "" && pathOf(a.Request) == "" { // else a mount has left it empty
		r.URL.Path = "/" // RFC 9110, 4.2.3
	}
	if r.URL.EscapedPath() != r.URL.RawPath {
		r.URL.RawPath = ""
	}
	r.RequestURI = r.URL.RequestURI()
	r.Body, r.GetBody, r.ContentLength = http.NoBody, nil, 0
	r.Trailer, r.TransferEncoding, r.Close = nil, nil, false
	r.Form, r.PostForm, r.MultipartForm = nil, nil, nil
	if !a.terms.headers.all {
		r.RemoteAddr = ""
	}
	if a.TLS != nil {
		r.TLS = a.sharedTLS()
	}
	a.site.addVia(r.Header, r.ProtoMajor, r.ProtoMinor)
	return r
}

// sharedTLS is the connection of a shared run: that of its client, as far as the key tells
// requests apart.
func (a *asked) sharedTLS() *tls.ConnectionState {
	state := tls.ConnectionState{HandshakeComplete: true}
	if a.credentialed {
		state = *a.TLS
	}
	state.ServerName = (&url.URL{Host: a.sharedHost()}).Hostname()
	return &state
}

// sharedHost is the host in the key.
func (a *asked) sharedHost() string {
	return httpcache.CanonicalHost(scheme(a.Request), a.site.host(a.Host))
}

// varying is the part of the request that Vary looks at.
func (a *asked) varying(nominated []string) *http.Request {
	return &http.Request{Method: http.MethodGet, Host: a.sharedHost(), Header: a.header(nominated)}
}

// Shared reports whether a request's context belongs to a shared run. A shared run was given
// only the common parts of the requests for its page, and its response may answer them all.
// Other runs were given their request's credentials. Their response, if it says public, is
// shared with other requests that have credentials.
func Shared(ctx context.Context) bool {
	r := httpcache.RunOf(ctx)
	return r != nil && r.Shared
}

// bypasses reports whether a GET or HEAD is not for a cache: it has a body, asks for another
// protocol, or has a target that does not tell pages apart.
func bypasses(r *http.Request) bool {
	return r.ContentLength != 0 || httpcache.Upgrades(r.Header) || strings.Contains(r.URL.RawQuery, "#") ||
		r.URL.Opaque != "" || r.URL.Scheme != "" && r.URL.Scheme != scheme(r) || strings.ContainsAny(r.Host, "/?#@\\")
}

// hasPrecondition reports whether a request may be answered 412. Only the origin can do so
// (RFC 9111, 4.3.2), and a shared run is not told the condition.
func hasPrecondition(h http.Header) bool {
	return len(h["If-Match"]) > 0 || len(h["If-Unmodified-Since"]) > 0
}
