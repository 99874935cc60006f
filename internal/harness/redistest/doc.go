// Package redistest starts Redis servers for tests, benchmarks, examples and
// the chaos tool: real redis-server processes ([StartStandalone],
// [StartCluster], [StartSentinel]), an embedded stand-in for them
// ([StartEmbedded], [StartEmbeddedInMemory]) and a TCP proxy that breaks the
// line between a client and a server ([StartProxy]).
//
// Each Start function returns a server that answers, or an error. A program
// calls these; a test calls the Run function of the same name, which fails the
// test instead of returning an error and stops the server when the test ends.
//
// Real servers are child processes on free loopback ports. They are stopped
// by Stop and, on Linux, by the kernel when this process dies in any other
// way (see [startChild]).
//
// The Start functions for real servers and proxies must be called outside a
// testing/synctest bubble: real sockets and processes do not follow its clock.
// StartEmbeddedInMemory is made for the inside of one.
package redistest
