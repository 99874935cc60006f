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
// (RFC 9111, 4). With Validate and GatewayTimeout comes the reason: FwdRequest if
// it is fresh and the request says otherwise, and FwdStale if not.
func MayServe(f Freshness, age time.Duration, req RequestControl) (Verdict, Fwd) {
	v, why := judge(f, age, req)
	if v == Validate && req.OnlyIfCached {
		v = GatewayTimeout
	}
	return v, why
}

func judge(f Freshness, age time.Duration, req RequestControl) (Verdict, Fwd) {
	left := f.Left(age)
	switch {
	case f.NoCache:
		return Validate, FwdStale
	case left > 0:
		return judgeFresh(f, age, req)
	case f.NeverStale, req.NoCache, req.MinFresh.Set, req.tooOld(age):
		return Validate, FwdStale
	case req.MaxAge.Set && !req.MaxStale.Set: // RFC 9111, 5.2.1.1
		return Validate, FwdStale
	case -left < f.StaleWhileRevalidate:
		return ServeAndRefresh, ""
	case req.MaxStale.Set && -left <= req.MaxStale.Value:
		return ServeStale, ""
	}
	return Validate, FwdStale
}

func judgeFresh(f Freshness, age time.Duration, req RequestControl) (Verdict, Fwd) {
	switch {
	case req.NoCache,
		req.tooOld(age) && !f.Immutable,
		req.MinFresh.Set && f.Left(age) < req.MinFresh.Value:
		return Validate, FwdRequest
	}
	return ServeFresh, ""
}

func (c *RequestControl) tooOld(age time.Duration) bool {
	return c.MaxAge.Set && age > c.MaxAge.Value
}

// MayServeOnError reports whether a stored response of an age may be served as
// the attempt to validate it failed: no answer came, or one that IsError (RFC
// 5861, 4). A request that says no-cache gets the error.
func MayServeOnError(f Freshness, age time.Duration, req RequestControl) bool {
	left := f.Left(age)
	switch {
	case f.NoCache, req.NoCache:
		return false
	case left > 0:
		return true
	case f.NeverStale:
		return false
	}
	return -left < max(f.StaleIfError, req.StaleIfError.Value)
}

// IsError reports whether a status is one of those that stale-if-error speaks of.
func IsError(status int) bool {
	return status == 500 || status == 502 || status == 503 || status == 504
}

// MayServeNothing is MayServe if nothing is stored: Validate or GatewayTimeout.
func MayServeNothing(req RequestControl) Verdict {
	if req.OnlyIfCached {
		return GatewayTimeout
	}
	return Validate
}
