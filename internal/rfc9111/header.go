package rfc9111

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// hopByHop are the fields for the next hop only (RFC 9110, 7.6.1), and those that
// only a cache that is its users' proxy may store (RFC 9111, 3.1).
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authentication-Info",
	"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// RemoveHopByHop takes the fields out of a header that are meant for the next hop
// only (RFC 9110, 7.6.1): Connection and those it names, Keep-Alive, Proxy-*,
// TE, Trailer, Transfer-Encoding, Upgrade.
func RemoveHopByHop(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(trim(name))
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

// StoredHeader returns what is stored of a response's header (RFC 9111, 3.1), as a
// copy: without the fields of the connection, those that no-cache or private
// name, and Age, as its age is known. A Date that is missing is added.
func StoredHeader(resp *Response, c ResponseControl, o Options) http.Header {
	h := resp.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	RemoveHopByHop(h)
	c.removeLimited(h, o)
	delete(h, "Age")
	if _, ok := ParseDate(h.Get("Date"), resp.ResponseTime); !ok {
		h.Set("Date", resp.ResponseTime.UTC().Format(http.TimeFormat))
	}
	return h
}

// removeLimited takes out the fields that must not be used again: those of
// no-cache="…", and in a shared cache of private="…".
func (c *ResponseControl) removeLimited(h http.Header, o Options) {
	for _, name := range c.NoCacheFields {
		delete(h, name)
	}
	if o.Shared {
		for _, name := range c.PrivateFields {
			delete(h, name)
		}
	}
}

// SetAge sets Age to whole seconds.
func SetAge(h http.Header, age time.Duration) {
	seconds := min(max(age, 0), MaxDelta) / time.Second
	h["Age"] = []string{strconv.FormatInt(int64(seconds), 10)}
}

// parseAge reads Age (RFC 9111, 5.1): the first of several, and nothing if it is
// invalid.
func parseAge(h http.Header) time.Duration {
	first, _, _ := strings.Cut(h.Get("Age"), ",")
	age, _ := parseSeconds(trim(first))
	return age
}

// ParseDate reads an HTTP date in any of its three forms (RFC 9110, 5.6.7). near
// tells the century of a year that has two digits: no such date is more than 50
// years after it. A zero one leaves that to package time.
func ParseDate(s string, near time.Time) (t time.Time, ok bool) {
	var err error
	switch {
	case len(s) == len(http.TimeFormat) && s[3] == ',':
		t, err = time.Parse(http.TimeFormat, s)
	case len(s) == len(time.ANSIC):
		t, err = time.Parse(time.ANSIC, s)
	case strings.HasSuffix(s, " GMT"):
		t, err = time.Parse(time.RFC850, s)
		if err == nil && !near.IsZero() {
			t = t.UTC().AddDate((near.Year()-t.Year())/100*100, 0, 0)
			if t.Before(near.AddDate(-50, 0, 0)) {
				t = t.AddDate(100, 0, 0)
			} else if t.After(near.AddDate(50, 0, 0)) {
				t = t.AddDate(-100, 0, 0)
			}
		}
	default:
		return time.Time{}, false
	}
	return t, err == nil
}

func canonical(name string) string { return textproto.CanonicalMIMEHeaderKey(name) }

// isToken reports whether s is a token, and so may be a field's name (RFC 9110,
// 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alnum && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}
