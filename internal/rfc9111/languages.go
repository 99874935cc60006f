package rfc9111

import (
	"slices"
	"strings"
)

// Languages returns an Accept-Language (RFC 9110, 12.5.4) in the form that stands for all
// fields of the same meaning: without white space, in the conventional case of language
// tags (RFC 5646, 2.1.1), sorted by weight, without weights of 1 and without zeros at the
// end of others. Languages of equal weight keep their order, as servers use it. ok is false
// for a malformed field.
func Languages(lines []string) (field string, ok bool) {
	type language struct{ text, weight string }
	var all []language
	for _, line := range lines {
		for _, element := range splitList(line) {
			tag, param, weighed := strings.Cut(element, ";")
			weight := "1"
			if weighed {
				if weight, ok = weightOf(trim(param)); !ok {
					return "", false
				}
			}
			if tag, ok = languageRange(trim(tag)); !ok {
				return "", false
			}
			if weight != "1" {
				tag += ";q=" + weight
			}
			all = append(all, language{tag, weight})
		}
	}
	// Weights are 0, 1, or digits after "0.", and so sort as text.
	slices.SortStableFunc(all, func(a, b language) int { return strings.Compare(b.weight, a.weight) })
	var b strings.Builder
	for i, l := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(l.text)
	}
	return b.String(), true
}

// weightOf returns the shortest text of a weight (RFC 9110, 12.4.2).
func weightOf(param string) (weight string, ok bool) {
	if len(param) < len("q=0") || param[0]|0x20 != 'q' || param[1] != '=' {
		return "", false
	}
	whole, decimals, _ := strings.Cut(param[2:], ".")
	kept := strings.TrimRight(decimals, "0")
	switch {
	case len(decimals) > 3, strings.Trim(decimals, "0123456789") != "":
		return "", false
	case (whole == "0" || whole == "1") && kept == "":
		return whole, true
	case whole == "0":
		return "0." + kept, true
	}
	return "", false
}

// languageRange returns a language range (RFC 4647, 2.1) in its conventional case: regions
// in capital letters, scripts with one, and the rest in small letters.
func languageRange(s string) (tag string, ok bool) {
	if s == "*" {
		return s, true
	}
	parts := strings.Split(strings.ToLower(s), "-")
	extension := false // subtags after one of a single character are no regions or scripts
	for i, p := range parts {
		letters := strings.Trim(p, "abcdefghijklmnopqrstuvwxyz") == ""
		switch {
		case p == "", len(p) > 8, strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789") != "", i == 0 && !letters:
			return "", false
		case i == 0 || extension || !letters:
		case len(p) == 2:
			parts[i] = strings.ToUpper(p)
		case len(p) == 4:
			parts[i] = strings.ToUpper(p[:1]) + p[1:]
		}
		extension = extension || len(p) == 1
	}
	return strings.Join(parts, "-"), true
}
