package middleware

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A trKeyer makes the keys of requests. In the clear they have the method and the
// host. Everything else, of which any part may be a secret (there are tokens in
// query parameters and in paths), is in a keyed digest.
type trKeyer struct {
	secret   []byte
	shared   bool            // credentials are no part of keys
	personal map[string]bool // headers that do or don't say who asks, where that isn't for the name to tell
}

func newTrKeyer(o *TransportOptions) *trKeyer {
	k := &trKeyer{secret: o.Secret, shared: o.Shared, personal: map[string]bool{
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

// trWords in a header's or query parameter's name mean that it says who asks.
var trWords = []string{
	"auth", "token", "secret", "apikey", "cookie", "password", "passwd", "credential", "signature", "session", "jwt", "bearer",
}

// trWholeWords do so only between hyphens, underscores or the name's ends.
var trWholeWords = map[string]bool{
	"key": true, "sig": true, "sid": true, "user": true, "userid": true, "account": true, "tenant": true, "org": true, "organization": true,
	"client": true, "uid": true, "member": true, "project": true, "workspace": true, "team": true, "behalf": true, "dpop": true,
	"customer": true, "identity": true, "principal": true, "subject": true, "email": true, "clientid": true,
	"impersonate": true, "pass": true, "pwd": true,
}

// looksPersonal goes by a name, in lower case.
func looksPersonal(name string) bool {
	for _, w := range trWords {
		if strings.Contains(name, w) {
			return true
		}
	}
	for w := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '-' || r == '_' || r == '.' }) {
		if trWholeWords[w] {
			return true
		}
	}
	return false
}

func (k *trKeyer) saysWho(header string) bool {
	if says, ok := k.personal[textproto.CanonicalMIMEHeaderKey(header)]; ok {
		return says
	}
	return looksPersonal(strings.ToLower(header))
}

// credentials are the headers of a request that say who asks, sorted, and the
// parameters of its URL's query that do, in their order. any says whether anything
// does, which may be its URL's userinfo.
func (k *trKeyer) credentials(req *http.Request) (headers, params []string, any bool) {
	for name := range req.Header {
		if k.saysWho(name) {
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
			if looksPersonal(strings.ToLower(name)) {
				params = append(params, part)
			}
		}
	}
	return headers, params, len(headers)+len(params) > 0 || req.URL.User != nil
}

// key of a request of a method; personal is false if it says nowhere who asks.
func (k *trKeyer) key(method string, req *http.Request, custom string) (key string, personal bool) {
	host := trHost(req.URL)
	parts := []string{method, req.URL.Scheme, host, sentHost(req)}
	names, params, personal := k.credentials(req)
	if custom == "" {
		parts = append(parts, "url", req.URL.Opaque, trPath(req.URL), req.URL.RawQuery)
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
	return method + " " + host + " " + k.digest(parts...), personal
}

// variant is the key of a variant of what has the key, told apart by the names of
// an index. The digest is keyed, as it may vary on credentials.
func (k *trKeyer) variant(key string, ix *index, req *http.Request) string {
	head := key[:strings.LastIndexByte(key, ' ')+1]
	return head + k.digest("variant", key, ix.gen, rfc9111.VariantKey(ix.names, req))
}

// digest tells apart any two lists of strings.
func (k *trKeyer) digest(parts ...string) string {
	mac := hmac.New(sha256.New, k.secret)
	var size [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		mac.Write(size[:])
		mac.Write([]byte(p))
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// trHost is a URL's host in lower case, without the port that its scheme implies.
func trHost(u *url.URL) string {
	host := strings.ToLower(u.Host)
	switch strings.ToLower(u.Scheme) {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return host
}

// sentHost is the Host that a request is sent with. It is the URL's where the request
// names none, as after a redirect, or under a proxy.
func sentHost(req *http.Request) string {
	return trHost(&url.URL{Scheme: req.URL.Scheme, Host: cmp.Or(req.Host, req.URL.Host)})
}

func trPath(u *url.URL) string {
	if p := u.EscapedPath(); p != "" {
		return p
	}
	return "/"
}
