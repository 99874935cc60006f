// Package middleware puts a guard in front of an [http.Handler]: a thousand
// requests in a fleet become one run of it, and nobody ever gets somebody else's
// page. It is a shared cache in the sense of RFC 9111 with the guard's lease
// behind it.
//
//	m, err := middleware.New(store, middleware.Options{TTL: time.Minute})
//	...
//	http.Handle("GET /report", m.Wrap(report))
//
// What the handler says of its responses (Cache-Control and its friends) rules;
// [Options.TTL] and [Rule] speak for handlers that say nothing.
//
// # Who may share
//
// A run of the handler that may answer several requests is given what these have
// in common and nothing else: method, scheme, host, path and sorted query, the
// headers and cookies that [Options] makes part of the key, those that the
// response's Vary has named, and the few of [Options.Forward]. Cookies,
// credentials, the client's address and all other headers don't reach it. [Shared]
// tells a handler which kind of run it is in. What it finds in its context is
// that of the request which happened to start it: put the middleware outside of
// what looks up the user.
//
// The cookies, unless [Options.Cookies] says which of them matter, and the credentials
// (Authorization and [Options.Credentials], or a client certificate) of a request that
// has any do reach the handler, without its other headers. The answer is shared only
// with other such requests, and only if it says public or s-maxage, or, for
// Authorization, what else RFC 9111 allows in section 3.5. That is decided at the
// response's header, before anybody who waits sees a byte of it. If it may not be
// shared, requests for that page run side by side for the next two minutes
// instead of queueing, or until an answer says otherwise.
//
// The rules, each with its test, are in docs/http.md.
package middleware
