package rfc9111

import "time"

// A Verdict is what a request is to be answered with, given a stored response.
type Verdict uint8

const (
	// Validate it first, or fetch it anew.
	Validate Verdict = iota
	// ServeFresh: it is fresh, and answers the request.
	ServeFresh
	// ServeStale: it is stale, and the client accepts that (max-stale).
	ServeStale
	// ServeAndRefresh: it is stale, and may be served while it is validated in the
	// background (stale-while-revalidate).
	ServeAndRefresh
	// GatewayTimeout: the answer is 504, as the request says only-if-cached and
	// there is nothing that it may have.
	GatewayTimeout
)

// MayServe says what may be done with a stored response of an age for a request
// (RFC 9111, 4). With Validate comes the reason, FwdStale or FwdRequest.
func MayServe(f Freshness, age time.Duration, req RequestControl) (Verdict, Fwd) { return Validate, FwdStale }

// MayServeOnError reports whether a stored response of an age may be served as
// the attempt to validate it failed: no answer came, or one with status 500, 502,
// 503 or 504 (RFC 5861, 4).
func MayServeOnError(f Freshness, age time.Duration, req RequestControl) bool { return false }

// MayServeNothing is MayServe if nothing is stored: Validate or GatewayTimeout.
func MayServeNothing(req RequestControl) Verdict { return Validate }
