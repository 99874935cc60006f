// Package echoguard is package middleware for Echo 4. It has no policy of its own.
package echoguard

import (
	"net/http"
	"slices"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/middleware"
)

// Wrap returns the middleware for Echo, for e.Use, e.Pre, a group or a route.
//
// A shared run gets an echo.Context of its own, with the route and its parameters, but
// without the values and writers that middlewares outside of this one have set for the
// client. Middlewares inside of it can provide the values that the handler needs. The same
// goes for a refresh in the background of any page. Middlewares of e.Pre that rewrite paths
// belong outside.
//
// A run of a request with credentials gets that request's own echo.Context, which Echo uses
// again when the request is over. Such a request therefore ends no sooner than its run, even
// if it is answered otherwise: by a 304, by a stale page after a SoftTimeout, or by 504 after
// FetchTimeout. The handler should heed its context.
//
// Echo has routes of their own for HEAD. A HEAD is answered from a stored page or by its own
// handler, and starts no run of GET, unless the middleware is in e.Pre.
//
// Errors are answered by Echo's error handler within the middleware, and do not travel
// further out. The answer is stored as its header says. An error after a part of a
// successful response ends the connection, as the response is not whole.
func Wrap(m *middleware.Middleware) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			e, request, response := c.Echo(), c.Request(), c.Response()
			path, names, values := c.Path(), slices.Clone(c.ParamNames()), slices.Clone(c.ParamValues())
			handler, allow := c.Handler(), c.Get(echo.ContextKeyHeaderAllow)
			// Echo uses c again when the request is over. The request therefore waits for a
			// run that has c, and no later run gets c.
			var lent sync.Mutex
			defer func() { lent.Lock(); c.SetRequest(request); c.SetResponse(response) }()
			m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				own := c
				mine := !middleware.Shared(r.Context()) && !refreshes(r, request)
				switch {
				case mine && isAlone(r, request):
					lent.Lock() // a run that the request has left may still have c
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
			})).ServeHTTP(writer{response}, routed(request, path))
			return nil
		}
	}
}

// routed returns a request that tells the middleware of a route of HEAD: next is not the handler
// of GET then. Before Echo has chosen a route its path is empty.
func routed(r *http.Request, path string) *http.Request {
	if r.Method != http.MethodHead || path == "" {
		return r
	}
	r2 := *r
	r2.Pattern = "HEAD " + path
	return &r2
}

// isAlone reports whether r is not that of a run: its handler keeps the request busy anyway.
func isAlone(r, request *http.Request) bool {
	return httpcache.RunOf(r.Context()) == httpcache.RunOf(request.Context())
}

// refreshes reports whether r is that of a refresh in the background, which the request that
// set it off must not wait for.
func refreshes(r, request *http.Request) bool {
	run := httpcache.RunOf(r.Context())
	return run != nil && run != httpcache.RunOf(request.Context()) && run.Background
}

// A writer passes on informational responses, which Echo's writer takes for final ones.
type writer struct{ *echo.Response }

func (w writer) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.Writer.WriteHeader(status)
		return
	}
	w.Response.WriteHeader(status)
}
