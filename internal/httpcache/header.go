package httpcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// CanonicalHost is a host in lower case, without the port that the scheme implies.
func CanonicalHost(scheme, host string) string {
	host = strings.ToLower(host)
	switch {
	case strings.EqualFold(scheme, "http"):
		return strings.TrimSuffix(host, ":80")
	case strings.EqualFold(scheme, "https"):
		return strings.TrimSuffix(host, ":443")
	}
	return host
}

// MaxKey bounds a part of a key, in bytes. A client may send a target of a megabyte, and
// many parts of a process keep keys.
const MaxKey = 256

// ShortKey returns a part of a key, with a digest in place of the rest if it is long. The
// result of a long part contains a line break, which no target has.
func ShortKey(part string) string {
	if len(part) <= MaxKey {
		return part
	}
	sum := sha256.Sum256([]byte(part))
	return part[:MaxKey/2] + "\n#" + hex.EncodeToString(sum[:])
}

// CanonicalHeader returns a copy of a header with all names in the spelling that package
// rfc9111 looks for. Code that writes to the map may spell them otherwise, and net/http
// sends them: to a client, set-cookie is Set-Cookie.
func CanonicalHeader(h http.Header) http.Header {
	c := h.Clone()
	for name, values := range h {
		if plain := http.CanonicalHeaderKey(name); plain != name {
			delete(c, name)
			c[plain] = append(c[plain], values...)
		}
	}
	return c
}

// Lines are lines of fields in one array, so that the header of a hit is one allocation.
type Lines []string

// Line returns the value of a field with one line.
func (l *Lines) Line(s string) []string {
	start := len(*l)
	*l = append(*l, s)
	return (*l)[start : start+1 : start+1]
}

// CopyHeader copies a header into another, which then shares no slices with it.
func CopyHeader(to, from http.Header) { copyHeader(to, from, 0) }

// copyHeader returns room for more lines, if few fields have more than one.
func copyHeader(to, from http.Header, room int) Lines {
	all := make(Lines, 0, len(from)+room)
	for name, values := range from {
		start := len(all)
		all = append(all, values...)
		to[name] = all[start:len(all):len(all)]
	}
	return all
}

// AddHeader is CopyHeader for a header that layers further out may have written to. A
// handler would have added to Vary and Set-Cookie, and so does AddHeader. It returns room for
// about three more lines.
func AddHeader(to, from http.Header) Lines {
	if len(to) == 0 {
		return copyHeader(to, from, 3)
	}
	vary, cookies := to["Vary"], to["Set-Cookie"]
	room := copyHeader(to, from, 3)
	if len(vary) > 0 && len(from["Vary"]) > 0 {
		to["Vary"] = slices.Concat(vary, from["Vary"])
	}
	if len(cookies) > 0 && len(from["Set-Cookie"]) > 0 {
		to["Set-Cookie"] = slices.Concat(cookies, from["Set-Cookie"])
	}
	return room
}

// ReplaceHeader makes a header equal to another.
func ReplaceHeader(h, by http.Header) {
	clear(h)
	CopyHeader(h, by)
}

// NamesIn returns the names that the lines of a field list; nil if there are no lines.
func NamesIn(lines []string) map[string]bool {
	if len(lines) == 0 {
		return nil
	}
	names := map[string]bool{}
	for _, line := range lines {
		for name := range strings.SplitSeq(line, ",") {
			names[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	return names
}

// Upgrades reports whether a request asks for another protocol. An Upgrade that Connection
// does not name is ignored (RFC 9110, 7.8).
func Upgrades(h http.Header) bool {
	if len(h["Upgrade"]) == 0 {
		return false
	}
	return NamesIn(h["Connection"])["Upgrade"]
}

// BodyAllowed reports whether a final response with the status has a body.
func BodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// SetFailure sets the header fields of a response that the cache makes by itself: a
// text that must not be stored, and Retry-After in whole seconds if after is positive.
func SetFailure(h http.Header, after time.Duration) {
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	if after > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
}

// ServeRanges answers a request for ranges of a body (rfc9111.AnswerRanges): 206 or 416
// with the header that w has. It returns the status and the number of body bytes.
func ServeRanges(w http.ResponseWriter, r *http.Request, body []byte) (status int, n int64) {
	rfc9111.RemoveContentDigests(w.Header())
	c := &counter{ResponseWriter: w, status: http.StatusOK}
	http.ServeContent(c, rfc9111.RangeRequest(r), "", time.Time{}, bytes.NewReader(body))
	return c.status, c.n
}

// A counter notes the status and the length of a response.
type counter struct {
	http.ResponseWriter
	status int
	n      int64
}

// WriteHeader implements [http.ResponseWriter].
func (c *counter) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n += int64(n)
	return n, err
}
