package cache

import "strings"

// toGrant is the ACL rule that lets a Redis user do what was refused with the given error,
// or empty if the error is not about permissions. Redis names the command, except in
// scripts before Redis 7.2.
func (s keyspace) toGrant(command string, err error) string {
	text := err.Error()
	denied := func(phrase string) bool { return strings.Contains(text, phrase) }
	if !denied("NOPERM") && !denied("ACL failure in script") && !denied("The user executing the script can't") {
		return ""
	}
	switch {
	case denied(" channel"):
		return "&" + s.namespace + ":*"
	case denied(" key"):
		return "~" + s.namespace + ":*"
	}
	if _, rest, ok := strings.Cut(text, "run the '"); ok {
		command, _, _ = strings.Cut(rest, "'")
	}
	return "+" + strings.ToLower(command)
}
