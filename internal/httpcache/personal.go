package httpcache

import (
	"slices"
	"strings"
)

// personalParts mark the name of a header or query parameter as a credential if they are
// anywhere in it.
var personalParts = []string{
	"auth", "token", "secret", "apikey", "cookie", "password", "passwd", "credential", "signature", "session", "jwt", "bearer",
}

// personalWords do so as whole words of a name.
var personalWords = setOf(
	"key", "sig", "sid", "user", "userid", "account", "tenant", "org", "organization", "client", "uid", "member", "project",
	"workspace", "team", "behalf", "dpop", "customer", "identity", "principal", "subject", "email", "clientid", "impersonate",
	"pass", "pwd",
)

// headerParts and headerWords count in names of headers only, with words of authenticating
// proxies and of vendors' ways to select an account. As query parameters, such words often
// select a page.
var (
	headerParts = []string{
		"appkey", "accesskey", "consumerkey", "passphrase", "sessid", "username", "csrf", "xsrf", "impersonat", "assertion", "oidc", "saml",
	}
	headerWords = setOf(
		"from", "consumer", "login", "cert", "certificate", "dn", "role", "roles", "group", "groups", "scope", "realm", "sudo", "otp",
		"pin", "ticket", "profile", "company", "merchant", "partner", "employee", "person", "patient", "student", "actor", "acting",
		"owner", "operator", "subscription", "license", "hmac", "sign", "admin",
	)
)

func setOf(words ...string) map[string]bool {
	set := make(map[string]bool, len(words))
	for _, w := range words {
		set[w] = true
	}
	return set
}

// PersonalParameter reports whether the name of a query parameter tells that its value
// identifies a user, or selects the user's data.
func PersonalParameter(name string) bool {
	return looksPersonal(strings.ToLower(name), personalParts, personalWords)
}

// PersonalHeader is PersonalParameter for the name of a header.
func PersonalHeader(name string) bool {
	name = strings.ToLower(name)
	return looksPersonal(name, personalParts, personalWords) || looksPersonal(name, headerParts, headerWords)
}

func looksPersonal(name string, parts []string, words map[string]bool) bool {
	if slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(name, part) }) {
		return true
	}
	for w := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '-' || r == '_' || r == '.' }) {
		if words[w] {
			return true
		}
	}
	return false
}

// infrastructure are last words of names that tell an address or a version of a client, and
// not its user: True-Client-Ip, X-Client-Port, X-Client-Version.
var infrastructure = setOf("ip", "port", "version", "region", "country", "city")

// IdentifiesUser reports whether a request header, by its canonical name, identifies a user
// to a server. It is PersonalHeader without the headers that browsers and proxies add to the
// requests of all users.
func IdentifiesUser(header string) bool {
	switch {
	case strings.HasPrefix(header, "Sec-"), header == "User-Agent", header == "Idempotency-Key", header == "X-Idempotency-Key":
		return false
	}
	name := strings.ToLower(header)
	last := name[strings.LastIndexByte(name, '-')+1:]
	switch {
	case last == "clientip", strings.Contains(name, "request-id"):
		return false
	case strings.Contains(name, "client-") && infrastructure[last]:
		return false
	}
	return PersonalHeader(name)
}
