package rfc9111

import (
	"errors"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// splitList splits a list at the commas outside of quoted strings (RFC 9110, 5.6.1)
// and leaves out empty elements. A quoted string starts after "=". One without an end is
// ignored: it would hide the directives behind it, one of which may be private.
func splitList(s string) (elements []string) {
	start := 0
	for i := 0; i <= len(s); i++ {
		switch {
		case i == len(s) || s[i] == ',':
			if e := trim(s[start:i]); e != "" {
				elements = append(elements, e)
			}
			start = i + 1
		case s[i] == '"' && i > start && s[i-1] == '=':
			i += max(0, quotedLen(s[i:])-1)
		}
	}
	return elements
}

// trim removes optional white space (RFC 9110, 5.6.3).
func trim(s string) string { return strings.Trim(s, " \t") }

// quotedLen is the length of the quoted string at the start of s, or 0 if it has no end.
func quotedLen(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}

// unquote returns the text of a token or quoted string.
func unquote(s string) (text string, malformed bool) {
	if !strings.HasPrefix(s, `"`) {
		return s, false
	}
	if quotedLen(s) != len(s) {
		return s, true
	}
	var b strings.Builder
	for i := 1; i < len(s)-1; i++ {
		if s[i] == '\\' {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String(), false
}

// isToken reports whether s is a token, and so may be the name of a field (RFC 9110,
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

func canonical(name string) string { return textproto.CanonicalMIMEHeaderKey(name) }

func removeFields(h http.Header, names []string) {
	for _, name := range names {
		delete(h, name)
	}
}

// MaxDelta bounds times to 2^31 seconds (RFC 9111, 1.2.2).
const MaxDelta = (1 << 31) * time.Second

// parseSeconds reads delta-seconds (RFC 9111, 1.2.2).
func parseSeconds(s string) (time.Duration, bool) {
	if s == "" { // frequent, and an error of ParseUint costs memory
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return time.Duration(min(n, uint64(MaxDelta/time.Second))) * time.Second, true
}

// ParseDate reads an HTTP date in any of its three forms (RFC 9110, 5.6.7). A year of two
// digits is at most 50 years after near; with a zero near it is package time's choice.
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

// entityTags reads a list (RFC 9110, 8.8.3) up to a malformed element. star: it has a *.
func entityTags(lines []string) (tags []string, star bool) {
	for _, line := range lines {
		for n := 1; n > 0; line = line[n:] {
			line = strings.TrimLeft(line, " \t,")
			if strings.HasPrefix(line, "*") {
				star, n = true, 1
			} else if n = entityTagLen(line); n > 0 {
				tags = append(tags, line[:n])
			}
		}
	}
	return tags, star
}

// entityTagLen is the length of the entity tag at the start of s, or 0.
func entityTagLen(s string) int {
	opaque := strings.TrimPrefix(s, "W/")
	if !strings.HasPrefix(opaque, `"`) {
		return 0
	}
	for i := 1; i < len(opaque); i++ {
		switch c := opaque[i]; {
		case c == '"':
			return len(s) - len(opaque) + i + 1
		case c <= ' ' || c == 0x7f:
			return 0
		}
	}
	return 0
}

func isEntityTag(s string) bool { return s != "" && entityTagLen(s) == len(s) }

func isWeak(tag string) bool { return strings.HasPrefix(tag, "W/") }

// weakMatch and strongMatch are the comparisons of RFC 9110, 8.8.3.2.
func weakMatch(a, b string) bool {
	return strings.TrimPrefix(a, "W/") == strings.TrimPrefix(b, "W/")
}

func strongMatch(a, b string) bool { return a == b && !isWeak(a) }
