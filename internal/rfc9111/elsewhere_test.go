package rfc9111_test

// elsewhere are the rules that no table of this package shows: with the test of
// this package or of middleware that does, or with why there is none.
var elsewhere = []tested{}
