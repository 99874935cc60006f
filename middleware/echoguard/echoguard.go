// Package echoguard is package middleware for Echo 4. It has no policy of its own.
package echoguard

import (
	"net/http"
	"slices"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/stampedeguard/stampede/internal/callers"
	"github.com/stampedeguard/stampede/middleware"
)

// Wrap returns the middleware for Echo, for e.Use, e.Pre, a group or a route.
//
// A shared run gets an echo.Context of its own, with the route and its parameters,
// and without what middlewares outside of this one have Set or wrapped around it
// for the client, which is not everybody's: what the handler needs of that comes
// from middlewares inside. So does a refresh in the background, of whatever page.
// Those of e.Pre that rewrite paths belong outside.
//
// A run of a request that says who asks gets that request's own echo.Context, which
// Echo uses again when the request is over. So such a request isn't over before the
// run that it started, even if something else answers it: a 304, what is stale after
// a SoftTimeout, or 504 after FetchTimeout. Its handler does well to heed its context.
//
// Errors are answered by Echo's error handler within the middleware, are kept as
// the response says, and don't travel further out. One that comes when part of a
// successful response has been written ends the connection: it isn't whole.
func Wrap(m *middleware.Middleware) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			e, request, response := c.Echo(), c.Request(), c.Response()
			path, names, values := c.Path(), slices.Clone(c.ParamNames()), slices.Clone(c.ParamValues())
			handler, allow := c.Handler(), c.Get(echo.ContextKeyHeaderAllow)
			// Echo uses c again when the request is over: so that waits for the run that
			// has c, and no later one gets it.
			var lent sync.Mutex
			defer func() { lent.Lock(); c.SetRequest(request); c.SetResponse(response) }()
			m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				own := c
				mine := !middleware.Shared(r.Context()) && !refreshes(r, request)
				switch {
				case mine && isAlone(r, request):
					lent.Lock() // a run that the request has given up may have c still
				case mine:
					mine = lent.TryLock()
				}
				if mine {
					defer lent.Unlock()
				} else {
					own = e.NewContext(nil, nil)
					own.SetPath(path)
					own.SetParamNames(names...)
					own.SetParamValues(values...)
					own.SetHandler(handler)
					own.Set(echo.ContextKeyHeaderAllow, allow)
				}
				own.SetRequest(r)
				own.SetResponse(echo.NewResponse(w, e))
				err := next(own)
				if w := own.Response(); err != nil && w.Committed && w.Status < 300 && r.Context().Err() == nil {
					panic(http.ErrAbortHandler)
				} else if err != nil {
					own.Error(err)
				}
			})).ServeHTTP(writer{response}, request)
			return nil
		}
	}
}

// isAlone reports whether r is no run's: its handler keeps the request busy anyway.
func isAlone(r, request *http.Request) bool {
	return callers.Of(r.Context()) == callers.Of(request.Context())
}

// refreshes reports whether the run that has r is a refresh in the background, which
// the request that set it off must not wait for.
func refreshes(r, request *http.Request) bool {
	c := callers.Of(r.Context())
	return c != nil && c != callers.Of(request.Context()) && c.Background()
}

// A writer lets informational responses pass, which Echo's takes for final.
type writer struct{ *echo.Response }

func (w writer) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.Writer.WriteHeader(status)
		return
	}
	w.Response.WriteHeader(status)
}
