// Package echoguard is package middleware for Echo. It has no policy of its own.
package echoguard

import (
	"errors"
	"net/http"
	"reflect"
	"slices"
	"sync"

	"github.com/labstack/echo/v5"

	"github.com/stampedeguard/stampede/middleware"
)

// Wrap returns the middleware for Echo:
//
//	m, err := middleware.New(store, middleware.Options{TTL: time.Minute})
//	...
//	e.GET("/report", report, echoguard.Wrap(m)) // or for a group, or by e.Pre for all
//
// Not by e.Use: Echo 5 has found the handler then, for the request's own context and
// no other.
//
// A shared run gets an echo.Context of its own, with the route and its parameters,
// and without what middlewares outside of this one have Set for the client, which
// is not everybody's: what the handler needs of that is Set by middlewares inside.
// Errors are answered by Echo's error handler within the middleware, and don't
// travel further out.
//
//go:noinline
func Wrap(m *middleware.Middleware) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			if used(c.Echo()) {
				return errUsed
			}
			e, route, params, w := c.Echo(), c.RouteInfo(), slices.Clone(c.PathValues()), c.Response()
			// Echo uses c again when the request is over: so that waits for the run that
			// has c, and no later one gets it.
			var lent sync.Mutex
			defer func() { lent.Lock(); c.SetResponse(w) }()
			m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				own := e.NewContext(r, w)
				if !middleware.Shared(r.Context()) && lent.TryLock() {
					defer lent.Unlock()
					own = c
					own.SetRequest(r)
					own.SetResponse(echo.NewResponse(w, e.Logger))
				} else {
					own.InitializeRoute(&route, &params)
				}
				if err := next(own); err != nil {
					e.HTTPErrorHandler(own, err)
				}
			})).ServeHTTP(w, c.Request())
			return nil
		}
	}
}

var errUsed = errors.New("echoguard: Wrap was given to Echo.Use, which it doesn't work with: give it to Echo.Pre, a group or a route")

// used reports whether one of Wrap's middlewares was given to Use. Closures of one
// function have its code in common.
func used(e *echo.Echo) bool {
	own := reflect.ValueOf(Wrap(nil)).Pointer()
	return slices.ContainsFunc(e.Middlewares(), func(f echo.MiddlewareFunc) bool { return reflect.ValueOf(f).Pointer() == own })
}
