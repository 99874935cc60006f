package rfc9111

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/dunglas/httpsfv"
)

// A Fwd is the reason for forwarding a request to the origin (RFC 9211, 2.2).
type Fwd string

const (
	FwdBypass   Fwd = "bypass"    // the cache does not handle such requests
	FwdMethod   Fwd = "method"    // the method has to be forwarded
	FwdURIMiss  Fwd = "uri-miss"  // no response is stored for the URI
	FwdVaryMiss Fwd = "vary-miss" // responses are stored, and no variant matches
	FwdMiss     Fwd = "miss"      // one of the two
	FwdRequest  Fwd = "request"   // the response is fresh, but the request excludes it
	FwdStale    Fwd = "stale"     // the response is stale
	FwdPartial  Fwd = "partial"   // only a part of the requested range is stored
)

// Status is one cache's member of Cache-Status (RFC 9211).
type Status struct {
	Cache string // its name; required
	Hit   bool   // answered without the origin; Fwd to Collapsed are then left out

	Fwd       Fwd
	FwdStatus int // the origin's status, if it is not the response's. 0: left out
	Stored    bool
	Collapsed bool

	TTL    Seconds // the rest of the lifetime; negative if stale
	Key    string
	Detail string
}

// Seconds may be left out.
type Seconds struct {
	Set   bool
	Value time.Duration
}

// String is the member as written in the field. Bytes that a structured field cannot hold
// are percent-encoded. It is assembled here because each hit pays for it.
func (s Status) String() string {
	b := appendText(make([]byte, 0, 64), s.Cache)
	if s.Hit {
		b = append(b, ";hit"...)
	} else {
		b = s.appendForwarded(b)
	}
	if s.TTL.Set {
		left := min(max(s.TTL.Value, -MaxDelta), MaxDelta)
		b = append(b, ";ttl="...)
		b = strconv.AppendInt(b, int64(math.Floor(left.Seconds())), 10)
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

const cacheStatus = "Cache-Status"

// AppendTo adds the member at the end of h's Cache-Status. A malformed Cache-Status is
// replaced: no reader could parse the list otherwise.
func (s Status) AppendTo(h http.Header) {
	lines := h[cacheStatus]
	if len(lines) > 0 {
		if _, err := httpsfv.UnmarshalList(lines); err != nil {
			lines = nil
		}
	}
	h[cacheStatus] = append(lines[:len(lines):len(lines)], s.String())
}

// appendText appends s as a token if possible, else as a string.
func appendText(b []byte, s string) []byte {
	if isToken(s) && (s[0] == '*' || s[0]|0x20 >= 'a' && s[0]|0x20 <= 'z') {
		return append(b, s...)
	}
	return appendString(b, s)
}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c > '~':
			b = fmt.Appendf(b, "%%%02X", c)
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
