package middleware

import (
	"context"
	"reflect"
	"slices"
)

// A sharedContext is the context of a request, for a run that may answer other requests. It
// has those of the request's values that cannot tell users apart: see Options.Context.
type sharedContext struct {
	context.Context
	site *site
}

// runContext is the context that a run of the request starts from.
func (a *asked) runContext() context.Context {
	if a.credentialed {
		return a.Context()
	}
	return &a.common
}

// Value implements [context.Context].
func (c *sharedContext) Value(key any) any {
	if isNeutral(key) || slices.Contains(c.site.opts.Context, key) {
		return c.Context.Value(key)
	}
	return nil
}

// AfterFunc spares package context a goroutine for each derived context.
func (c *sharedContext) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(c.Context, f)
}

// isNeutral reports whether a key comes from a package with values that describe the
// server, the run or its trace.
func isNeutral(key any) bool {
	t := reflect.TypeOf(key)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.PkgPath() {
	case "net/http", "runtime/pprof", "go.opentelemetry.io/otel/trace",
		"github.com/stampedeguard/stampede/guard", "github.com/stampedeguard/stampede/internal/httpcache":
		return true
	}
	return false
}
