package rfc9111

import (
	"strings"
	"time"
)

// A directive of Cache-Control.
type directive struct {
	name      string // lower case
	value     string // without its quotes
	quoted    bool   // it had some
	malformed bool   // white space around =, or text after the closing quote
}

// directives splits the lines of a Cache-Control field (RFC 9111, 5.2).
func directives(lines []string) []directive {
	var ds []directive
	for _, line := range lines {
		for _, element := range splitList(line) {
			name, value, _ := strings.Cut(element, "=")
			d := directive{name: strings.ToLower(trim(name))}
			d.value, d.malformed = unquote(value)
			d.quoted = strings.HasPrefix(value, `"`) && !d.malformed
			d.malformed = d.malformed || trim(name) != name || trim(value) != value
			ds = append(ds, d)
		}
	}
	return ds
}

// splitList splits a list at the commas outside of quoted strings (RFC 9110,
// 5.6.1), leaving out empty elements. A quoted string starts after "=". One that
// doesn't end is none: what follows would otherwise be hidden in it, and it may
// be private.
func splitList(s string) []string {
	var elements []string
	start := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == ',':
			elements = appendElement(elements, s[start:i])
			start = i + 1
		case s[i] == '"' && i > start && s[i-1] == '=':
			if n := quotedLen(s[i:]); n > 0 {
				i += n - 1
			}
		}
	}
	return appendElement(elements, s[start:])
}

func appendElement(elements []string, e string) []string {
	if e = trim(e); e == "" {
		return elements
	}
	return append(elements, e)
}

// trim removes optional white space (RFC 9110, 5.6.3).
func trim(s string) string { return strings.Trim(s, " \t") }

// quotedLen is the length of the quoted string that s begins with, or 0 if it
// doesn't end.
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
	if n := quotedLen(s); n != len(s) {
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

// fieldNames reads the argument of no-cache or private. Not ok: it has none that
// can be obeyed, so the directive stands for the whole response. That goes for an
// argument without quotes, too: RFC 9111 tells senders not to generate it, and who
// says private=true doesn't mean a field named True.
func (d directive) fieldNames() (names []string, ok bool) {
	if !d.quoted {
		return nil, false
	}
	for name := range strings.SplitSeq(d.value, ",") {
		name = trim(name)
		if name == "" {
			continue
		}
		if !isToken(name) || name == "*" {
			return nil, false
		}
		names = append(names, canonical(name))
	}
	return names, len(names) > 0
}

// A Delta is the argument of a directive that counts seconds.
type Delta struct {
	Set     bool
	Invalid bool          // Set, but with something else; Value is 0
	Value   time.Duration // 0 to MaxDelta
}

// MaxDelta is what longer times are cut to: 2^31 seconds (RFC 9111, 1.2.2).
const MaxDelta = (1 << 31) * time.Second

// delta reads the seconds of a directive. What is invalid is as strict as can be:
// nothing is fresh for that long (RFC 9111, 4.2.1).
func (d directive) delta() Delta {
	v, ok := parseSeconds(d.value)
	if !ok || d.malformed {
		return Delta{Set: true, Invalid: true}
	}
	return Delta{Set: true, Value: v}
}

// parseSeconds reads delta-seconds (RFC 9111, 1.2.2).
func parseSeconds(s string) (time.Duration, bool) {
	if s == "" {
		return 0, false
	}
	var n int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = min(n*10+int64(s[i]-'0'), int64(MaxDelta/time.Second))
	}
	return time.Duration(n) * time.Second, true
}

// shorter keeps the shorter of what a directive says twice.
func (d *Delta) shorter(other Delta) {
	if !d.Set || other.Invalid || (!d.Invalid && other.Value < d.Value) {
		*d = other
	}
}

// longer keeps the longer of what a directive says twice.
func (d *Delta) longer(other Delta) {
	if !d.Set || other.Value > d.Value {
		*d = other
	}
}
