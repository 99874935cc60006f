// Package middleware puts a guard in front of an [http.Handler]: a thousand requests in a
// fleet become one run of it, and no client gets a page that was made for another one. It
// is a shared cache in the sense of RFC 9111 with the guard's lease behind it.
//
//	m, err := middleware.New(store, middleware.Options{TTL: time.Minute})
//	...
//	http.Handle("GET /report", m.Wrap(report))
//
// The handler's Cache-Control and its like rule. [Options.TTL] and [Rule] are for
// handlers that say nothing.
//
// # Which requests share
//
// A run of the handler that may answer several requests is given only their common parts:
// method, scheme, host, path and sorted query, the headers and cookies that [Options] makes
// part of the key, the headers that the response's Vary has named, and the few of
// [Options.Forward]. Cookies, credentials, the client's address and all other headers don't
// reach it. [Shared] tells a handler that it is in such a run. Its context has only those
// values of its request that [Options.Context] lists, and a few that tell no users apart.
//
// A request with credentials ([Options.Credentials], a client certificate, or cookies,
// unless [Options.Cookies] lists those that matter) has a run that gets these, and no other
// headers. The response is shared only with other such requests, and only if it says public
// or s-maxage. [Options.TrustOrigin] changes that. The decision falls at the response's
// header, before a waiting request gets a byte of it. If the response may not be shared, the
// requests for that page run side by side for the next two minutes instead of queueing, or
// until a response can be shared.
//
// The rules, each with its test, are in docs/http.md.
package middleware
