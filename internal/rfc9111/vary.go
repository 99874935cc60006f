package rfc9111

import "net/http"

// MaxVaryNames that a response may nominate to be stored.
const MaxVaryNames = 16

// VaryNames returns the request fields that a response nominates, canonical,
// sorted and each once. ok is false if no later request can match: for *, for what
// isn't a field name, and for more than MaxVaryNames.
func VaryNames(h http.Header) (names []string, ok bool) { return nil, true }

// VariantKey is the part of a key that tells apart what a response varies on: a
// digest of the request's fields of those names (RFC 9111, 4.1). Two requests
// match if their keys are equal. It is empty if there are no names. It is made of
// hexadecimal digits, and tells nothing of the fields' values.
func VariantKey(names []string, req *http.Request) string { return "" }
