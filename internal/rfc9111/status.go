package rfc9111

import (
	"fmt"
	"net/http"
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
// hold is percent-encoded.
func (s Status) String() string {
	item := httpsfv.NewItem(tokenOrString(s.Cache))
	p := item.Params
	if s.Hit {
		p.Add("hit", true)
	} else {
		s.addForwarded(p)
	}
	if s.TTL.Set {
		ttl := min(max(s.TTL.Value, -MaxDelta), MaxDelta)
		whole := ttl.Truncate(time.Second)
		if whole > ttl {
			whole -= time.Second // half a second after its end it has no second left
		}
		p.Add("ttl", int64(whole/time.Second))
	}
	if s.Key != "" {
		p.Add("key", printable(s.Key))
	}
	if s.Detail != "" {
		p.Add("detail", tokenOrString(s.Detail))
	}
	text, err := httpsfv.Marshal(item)
	if err != nil {
		return "" // can't be: all values are made to fit
	}
	return text
}

func (s Status) addForwarded(p *httpsfv.Params) {
	if s.Fwd != "" {
		p.Add("fwd", tokenOrString(string(s.Fwd)))
	}
	if s.FwdStatus > 0 {
		p.Add("fwd-status", int64(s.FwdStatus))
	}
	if s.Stored {
		p.Add("stored", true)
	}
	if s.Collapsed {
		p.Add("collapsed", true)
	}
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

// tokenOrString is s as a token if it can be one.
func tokenOrString(s string) any {
	if isToken(s) && (s[0] == '*' || s[0]|0x20 >= 'a' && s[0]|0x20 <= 'z') {
		return httpsfv.Token(s)
	}
	return printable(s)
}

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
