package transport

import (
	"net/http"
	"net/url"

	"github.com/stampedeguard/stampede/internal/httpcache"
)

// A Keyer makes keys.
type Keyer struct{ k *keyer }

// NewKeyer returns the keyer of a transport with the options.
func NewKeyer(o Options) Keyer { return Keyer{newKeyer(&o)} }

// IsPersonal reports whether a header is a credential.
func (k Keyer) IsPersonal(header string) bool { return k.k.isPersonal(header) }

// Key is the key of a request with a method.
func (k Keyer) Key(method string, req *http.Request, custom string) (string, bool) {
	return k.k.key(method, req, custom, false)
}

// Variant is the key of the request's variant.
func (k Keyer) Variant(key, gen string, names []string, req *http.Request) string {
	return k.k.variant(key, &httpcache.Index{Gen: gen, Names: names}, req)
}

// HostOf is the host in a URL's key.
func HostOf(u *url.URL) string { return httpcache.CanonicalHost(u.Scheme, u.Host) }
