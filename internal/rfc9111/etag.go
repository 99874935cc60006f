package rfc9111

import "strings"

// entityTags reads a list of entity tags (RFC 9110, 8.8.3). What comes after
// something else is left out. any: it has a *.
func entityTags(lines []string) (tags []string, any bool) {
	for _, line := range lines {
		for {
			line = strings.TrimLeft(line, " \t,")
			if line == "" {
				break
			}
			if line[0] == '*' {
				any, line = true, line[1:]
				continue
			}
			n := entityTagLen(line)
			if n == 0 {
				break
			}
			tags, line = append(tags, line[:n]), line[n:]
		}
	}
	return tags, any
}

// entityTagLen is the length of the entity tag that s begins with, or 0.
func entityTagLen(s string) int {
	start := 0
	if strings.HasPrefix(s, "W/") {
		start = 2
	}
	if len(s) <= start || s[start] != '"' {
		return 0
	}
	for i := start + 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return i + 1
		case c <= ' ' || c == 0x7f:
			return 0
		}
	}
	return 0
}

// isEntityTag reports whether s is one entity tag.
func isEntityTag(s string) bool { return s != "" && entityTagLen(s) == len(s) }

func isWeak(tag string) bool { return strings.HasPrefix(tag, "W/") }

// weakMatch and strongMatch are the comparisons of RFC 9110, 8.8.3.2.
func weakMatch(a, b string) bool {
	return strings.TrimPrefix(a, "W/") == strings.TrimPrefix(b, "W/")
}

func strongMatch(a, b string) bool { return a == b && !isWeak(a) }
