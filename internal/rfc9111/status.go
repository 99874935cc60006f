package rfc9111

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// A Fwd is why a request went on to the origin (RFC 9211, 2.2).
type Fwd string

const (
	FwdBypass   Fwd = "bypass"    // the cache doesn't handle such requests
	FwdMethod   Fwd = "method"    // the method has to be forwarded
	FwdURIMiss  Fwd = "uri-miss"  // nothing is stored for the URI
	FwdVaryMiss Fwd = "vary-miss" // something is, and no variant matches
	FwdMiss     Fwd = "miss"      // one of the two
	FwdRequest  Fwd = "request"   // it is fresh, but the request says otherwise
	FwdStale    Fwd = "stale"     // it is stale
	FwdPartial  Fwd = "partial"   // not all of what is asked for is stored
)

// Status is one cache's member of Cache-Status (RFC 9211).
type Status struct {
	Cache string // its name; required
	Hit   bool   // answered without going to the origin; what is about that is then left out

	Fwd       Fwd
	FwdStatus int // what the origin answered, where that isn't the response's status. 0: left out
	Stored    bool
	Collapsed bool

	TTL    Seconds // what is left of the lifetime; negative if stale
	Key    string
	Detail string
}

// Seconds may be left out.
type Seconds struct {
	Set   bool
	Value time.Duration
}

// String is the member as it stands in the field. What a structured field can't
// hold is percent-encoded. It is put together here, as a hit is to cost little;
// httpsfv writes what may need quotes.
func (s Status) String() string {
	b := make([]byte, 0, 64)
	b = appendText(b, s.Cache)
	if s.Hit {
		b = append(b, ";hit"...)
	} else {
		b = s.appendForwarded(b)
	}
	if s.TTL.Set {
		b = append(b, ";ttl="...)
		b = strconv.AppendInt(b, wholeSeconds(s.TTL.Value), 10)
	}
	if s.Key != "" {
		b = append(b, ";key="...)
		b = appendString(b, s.Key)
	}
	if s.Detail != "" {
		b = append(b, ";detail="...)
		b = appendText(b, s.Detail)
	}
	return string(b)
}

func (s *Status) appendForwarded(b []byte) []byte {
	if s.Fwd != "" {
		b = append(b, ";fwd="...)
		b = appendText(b, string(s.Fwd))
	}
	if s.FwdStatus > 0 {
		b = append(b, ";fwd-status="...)
		b = strconv.AppendInt(b, int64(s.FwdStatus), 10)
	}
	if s.Stored {
		b = append(b, ";stored"...)
	}
	if s.Collapsed {
		b = append(b, ";collapsed"...)
	}
	return b
}

// wholeSeconds rounds down: what ended half a second ago has -1 left.
func wholeSeconds(d time.Duration) int64 {
	d = min(max(d, -MaxDelta), MaxDelta)
	n := int64(d / time.Second)
	if d%time.Second < 0 {
		n--
	}
	return n
}

const cacheStatus = "Cache-Status"

// AppendTo adds the member at the end of the header's Cache-Status. What is there
// and can't be read goes, as nobody could read the list otherwise.
func (s Status) AppendTo(h http.Header) {
	lines := h[cacheStatus]
	if len(lines) > 0 {
		if _, err := httpsfv.UnmarshalList(lines); err != nil {
			lines = nil
		}
	}
	h[cacheStatus] = append(lines[:len(lines):len(lines)], s.String())
}

// appendText appends s as a token if it can be one, and as a string if not.
func appendText(b []byte, s string) []byte {
	if isToken(s) && (s[0] == '*' || s[0]|0x20 >= 'a' && s[0]|0x20 <= 'z') {
		return append(b, s...)
	}
	return appendString(b, s)
}

func appendString(b []byte, s string) []byte {
	text, err := httpsfv.Marshal(httpsfv.NewItem(printable(s)))
	if err != nil {
		return append(b, `""`...) // can't be: a string that is printable has a form
	}
	return append(b, text...)
}

// printable percent-encodes what a string can't hold.
func printable(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
