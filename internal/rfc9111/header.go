package rfc9111

import (
	"net/http"
	"time"
)

// StoredHeader returns what is stored of a response's header (RFC 9111, 3.1), as a
// copy: without the fields of the connection, those that no-cache or private
// name, and Age, as its age is known. A Date that is missing is added.
func StoredHeader(resp *Response, c ResponseControl, o Options) http.Header { return nil }

// RemoveHopByHop takes the fields out of a header that are meant for the next hop
// only (RFC 9110, 7.6.1): Connection and those it names, Keep-Alive, Proxy-*,
// TE, Trailer, Transfer-Encoding, Upgrade.
func RemoveHopByHop(h http.Header) {}

// SetAge sets Age to whole seconds.
func SetAge(h http.Header, age time.Duration) {}

// ParseDate reads an HTTP date in any of its three forms (RFC 9110, 5.6.7).
func ParseDate(s string) (time.Time, bool) { return time.Time{}, false }
