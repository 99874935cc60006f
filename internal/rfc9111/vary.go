package rfc9111

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
)

// MaxVaryNames that a response may nominate to be stored.
const MaxVaryNames = 16

// VaryNames returns the request fields that a response nominates, canonical,
// sorted and each once. ok is false if no later request can match: for *, for what
// isn't a field name, and for more than MaxVaryNames.
func VaryNames(h http.Header) (names []string, ok bool) {
	for _, line := range h["Vary"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = trim(name); name == "" {
				continue
			}
			if name == "*" || !isToken(name) {
				return nil, false
			}
			names = append(names, canonical(name))
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > MaxVaryNames {
		return nil, false
	}
	return names, true
}

// VariantKey is the part of a key that tells apart what a response varies on: a
// digest of the request's fields of those names (RFC 9111, 4.1). Two requests
// match if their keys are equal. It is empty if there are no names, and otherwise
// SHA-256 in hexadecimal digits: nobody reads credentials from it, but who guesses
// a value can see that it is right.
func VariantKey(names []string, req *http.Request) string {
	if len(names) == 0 {
		return ""
	}
	var b []byte
	for _, name := range names {
		lines, ok := req.Header[name]
		if !ok {
			lines, ok = otherwiseWritten(req.Header, name)
		}
		if name == "Host" { // net/http moves it
			lines, ok = []string{strings.ToLower(req.Host)}, req.Host != ""
		}
		b = appendSized(b, name)
		if !ok {
			b = append(b, 0) // absent only matches absent
			continue
		}
		b = append(b, 1)
		b = appendSized(b, normalized(name, lines))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// otherwiseWritten are the lines of a field whose name a client has put into its
// header in another case than net/http does.
func otherwiseWritten(h http.Header, name string) ([]string, bool) {
	for written, lines := range h {
		if strings.EqualFold(written, name) {
			return lines, true
		}
	}
	return nil, false
}

func appendSized(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// normalized combines the lines of a field. Of lists the white space and the
// empty elements go, and the case of those that have none. Nothing is done to
// the order, which a server may well go by.
func normalized(name string, lines []string) string {
	switch name {
	case "Accept-Encoding", "Accept-Language", "Accept-Charset":
		return strings.ToLower(joinList(lines))
	case "Accept", "Cache-Control", "Forwarded", "Prefer", "Te", "Via", "X-Forwarded-For":
		return joinList(lines)
	}
	trimmed := make([]string, len(lines))
	for i, line := range lines {
		trimmed[i] = trim(line)
	}
	return strings.Join(trimmed, ", ")
}

func joinList(lines []string) string {
	var elements []string
	for _, line := range lines {
		for _, e := range splitList(line) {
			elements = append(elements, tighten(e))
		}
	}
	return strings.Join(elements, ",")
}

// tighten removes the white space around the semicolons of parameters, outside of
// quoted strings.
func tighten(e string) string {
	if strings.IndexByte(e, ';') < 0 || strings.IndexByte(e, '"') >= 0 {
		return e
	}
	parts := strings.Split(e, ";")
	for i, p := range parts {
		parts[i] = trim(p)
	}
	return strings.Join(parts, ";")
}
