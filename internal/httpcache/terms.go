package httpcache

import (
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// Terms are a side's choices for the lifetime of entries.
type Terms struct {
	// Keep is how long a response with a validator is kept after it went stale.
	// guard.Off: it is not.
	Keep time.Duration
	// EachValidates: a response that must be validated before each use is validated by
	// each request for itself. The entry is then fresh to the guard, so that requests do
	// not wait for each other. The side decides by itself when a stale response stands in
	// for an error.
	EachValidates bool
}

// Set states in a fill for how long a page is fresh, and its use after that.
func (t Terms) Set(f *guard.Fill[*Page], p *Page) {
	fresh, keep := &p.Freshness, time.Duration(0)
	if t.Keep > 0 && rfc9111.HasValidator(p.Header) {
		keep = t.Keep
	}
	f.TTL = fresh.Left(fresh.InitialAge)
	past := max(fresh.StaleWhileRevalidate, fresh.StaleIfError)
	switch {
	case t.EachValidates && AlwaysValidated(*fresh):
		f.TTL, f.StaleFor = max(past, keep, time.Millisecond), guard.Off
		return
	case t.EachValidates:
		past = max(past, keep)
	case fresh.NoCache:
		f.TTL = 0
	}
	switch {
	case past > 0 && fresh.StaleWhileRevalidate > 0:
		f.StaleFor, f.StaleUse = past, guard.ServeStale
	case past > 0 && !t.EachValidates:
		f.StaleFor, f.StaleUse = past, guard.OnlyIfError
	case max(past, keep) > 0:
		f.StaleFor, f.StaleUse = max(past, keep), guard.OnlyValidate
		return // it may be stale from the start
	default:
		f.StaleFor = guard.Off
	}
	if f.TTL > 0 || f.StaleFor <= 0 || fresh.NoCache {
		return
	}
	// The response was stale when it came.
	f.StaleFor, f.TTL = f.StaleFor+f.TTL, time.Millisecond
	if f.StaleFor <= 0 {
		f.StaleFor = guard.Off
		if keep > 0 {
			f.StaleFor, f.StaleUse = keep, guard.OnlyValidate
		}
	}
}

// AlwaysValidated reports whether a response is of no use before it was validated.
func AlwaysValidated(f rfc9111.Freshness) bool {
	return f.NoCache || (f.Lifetime <= f.InitialAge && f.StaleWhileRevalidate == 0)
}
