package transport

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A keyer makes the keys of requests. A key has the method and the host in the clear. The
// rest, any part of which may be a secret (a token in a path, say), is in a keyed digest.
type keyer struct {
	secret   []byte
	shared   bool            // keys do not contain credentials
	personal map[string]bool // headers of which the name does not tell whether they are credentials
}

func newKeyer(o *Options) *keyer {
	k := &keyer{secret: o.Secret, shared: o.Shared, personal: map[string]bool{
		"Idempotency-Key": false, "X-Idempotency-Key": false, "User-Agent": false, "Sec-Websocket-Key": false,
	}}
	if len(k.secret) == 0 {
		sum := sha256.Sum256([]byte("stampede transport without a secret: " + o.Name))
		k.secret = sum[:]
	}
	for _, name := range o.Credentials {
		k.personal[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	for _, name := range o.Harmless {
		k.personal[textproto.CanonicalMIMEHeaderKey(name)] = false
	}
	return k
}

// isPersonal reports whether a header is a credential.
func (k *keyer) isPersonal(header string) bool {
	if says, ok := k.personal[textproto.CanonicalMIMEHeaderKey(header)]; ok {
		return says
	}
	return httpcache.PersonalHeader(header)
}

// credentials returns the names of a request's credential headers, sorted, and the
// credential parameters of its query, in their order. any reports whether there are
// credentials, which may also be the URL's userinfo.
func (k *keyer) credentials(req *http.Request) (headers, params []string, any bool) {
	for name := range req.Header {
		if k.isPersonal(name) {
			headers = append(headers, name)
		}
	}
	slices.Sort(headers)
	if req.URL.RawQuery != "" {
		for part := range strings.SplitSeq(req.URL.RawQuery, "&") {
			name, _, _ := strings.Cut(part, "=")
			if plain, err := url.QueryUnescape(name); err == nil {
				name = plain
			}
			if httpcache.PersonalParameter(name) {
				params = append(params, part)
			}
		}
	}
	return headers, params, len(headers)+len(params) > 0 || req.URL.User != nil
}

// key is the key of a request with another method. personal reports whether the request
// has credentials. unusual says that it has headers of which nothing is known: see others.
func (k *keyer) key(method string, req *http.Request, custom string, unusual bool) (key string, personal bool) {
	host := httpcache.CanonicalHost(req.URL.Scheme, req.URL.Host)
	parts := []string{method, req.URL.Scheme, host, sentHost(req)}
	if unusual {
		parts = append(parts, "unusual")
	}
	names, params, personal := k.credentials(req)
	if custom == "" {
		parts = append(parts, "url", req.URL.Opaque, pathOf(req.URL), req.URL.RawQuery)
	} else {
		parts = append(parts, "custom", custom)
		if !k.shared {
			for _, param := range params {
				parts = append(parts, "param", param)
			}
		}
	}
	if !k.shared {
		for _, name := range names {
			values := req.Header[name]
			parts = append(parts, "header", name, strconv.Itoa(len(values)))
			parts = append(parts, values...)
		}
		if u := req.URL.User; u != nil {
			parts = append(parts, "userinfo", u.String())
		}
	}
	return method + " " + host[:min(len(host), maxHost)] + " " + k.digest(parts...), personal
}

// maxHost is the longest name of a host (RFC 1035), with a port.
const maxHost = 253 + len(":65535")

// othersName stands for all headers of which nothing is known, in the names that a page
// varies on. No header has this name.
const othersName = ":others"

// usual are headers on which an upstream's response depends as the cache knows, or not at
// all.
var usual = map[string]bool{
	"Accept-Encoding": true, "User-Agent": true, "Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true, "Transfer-Encoding": true,
	"Content-Length": true, "Cache-Control": true, "Pragma": true, "Range": true, "If-Range": true, "If-Match": true, "If-None-Match": true,
	"If-Modified-Since": true, "If-Unmodified-Since": true, "Date": true, "Expect": true, "Via": true, "Max-Forwards": true, "Referer": true,
	"Priority": true, "Idempotency-Key": true, "X-Idempotency-Key": true, "Traceparent": true, "Tracestate": true, "Baggage": true,
	"X-Request-Id": true, "X-Correlation-Id": true, "X-Amzn-Trace-Id": true, "X-Cloud-Trace-Context": true, "Uber-Trace-Id": true,
	"B3": true, "X-B3-Traceid": true, "X-B3-Spanid": true, "X-B3-Parentspanid": true, "X-B3-Sampled": true, "X-B3-Flags": true,
}

// others returns a digest of the headers of which nothing is known: neither credentials nor
// usual ones. It is empty if there are none. A response that states no lifetime does not
// know of caches, and may depend on any header without a Vary.
func (k *keyer) others(h http.Header) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(h)) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if _, judged := k.personal[canonical]; judged || usual[canonical] || k.isPersonal(name) {
			continue
		}
		parts = append(append(parts, canonical, strconv.Itoa(len(h[name]))), h[name]...)
	}
	if parts == nil {
		return ""
	}
	return k.digest(parts...)
}

// variant is the key of the request's variant under an index. Its digest is keyed, as the
// response may vary on credentials.
func (k *keyer) variant(key string, ix *httpcache.Index, req *http.Request) string {
	head := key[:strings.LastIndexByte(key, ' ')+1]
	return head + k.digest("variant", key, ix.Gen, rfc9111.VariantKey(ix.Names, req))
}

// digest is a keyed digest of a list of strings.
func (k *keyer) digest(parts ...string) string {
	mac := hmac.New(sha256.New, k.secret)
	var size [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		mac.Write(size[:])
		mac.Write([]byte(p))
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// sentHost is the Host that a request is sent with: the URL's if the request names none,
// as after a redirect.
func sentHost(req *http.Request) string {
	return httpcache.CanonicalHost(req.URL.Scheme, cmp.Or(req.Host, req.URL.Host))
}

func pathOf(u *url.URL) string {
	if p := u.EscapedPath(); p != "" {
		return p
	}
	return "/"
}
