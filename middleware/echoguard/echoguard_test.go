package echoguard_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	echomiddleware "github.com/labstack/echo/v4/middleware"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware"
	"github.com/stampedeguard/stampede/middleware/echoguard"
)

// A site is a server of guarded routes.
type site struct {
	*httptest.Server
	m *middleware.Middleware
}

// settled waits for the ends of runs. A response may reach its client a moment before.
func (s site) settled(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); len(s.m.Stats().Guard.InFlight) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("runs do not end: %+v", s.m.Stats().Guard.InFlight)
		}
	}
}

func serve(t *testing.T, routes func(e *echo.Echo, guarded echo.MiddlewareFunc)) site {
	t.Helper()
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := middleware.New(store, middleware.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	e := echo.New()
	routes(e, echoguard.Wrap(m))
	s := httptest.NewServer(e)
	t.Cleanup(func() { _ = m.Close(); s.Close(); _ = store.Close() })
	return site{s, m}
}

func get(t *testing.T, url string, cookie ...string) (int, string) {
	t.Helper()
	r, _ := http.NewRequest("GET", url, nil)
	for _, c := range cookie {
		r.Header.Add("Cookie", c)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestManyRequestsAreOneRun(t *testing.T) {
	var runs atomic.Int32
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		e.GET("/report/:id", func(c echo.Context) error {
			time.Sleep(100 * time.Millisecond)
			return c.String(200, fmt.Sprintf("report %s, run %d", c.Param("id"), runs.Add(1)))
		}, guarded)
	})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if code, body := get(t, s.URL+"/report/7"); code != 200 || body != "report 7, run 1" {
				t.Errorf("%d %q", code, body)
			}
		})
	}
	wg.Wait()
}

// A value that another middleware has Set for the client reaches runs for that
// client alone.
func TestContextValuesStayWithTheirClient(t *testing.T) {
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		who := func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				if user, err := c.Cookie("user"); err == nil {
					c.Set("user", user.Value)
				}
				return next(c)
			}
		}
		e.GET("/me", func(c echo.Context) error {
			c.Response().Header().Set("Cache-Control", "private")
			return c.String(200, fmt.Sprint(c.Get("user")))
		}, who, guarded)
	})
	for i := range 10 {
		user := fmt.Sprint("u", i)
		if code, body := get(t, s.URL+"/me", "user="+user); code != 200 || body != user {
			t.Errorf("%d %q", code, body)
		}
	}
}

// A refresh in the background delays no request, not even the request that started it.
// This also holds for a request with credentials.
func TestRefreshDelaysNoRequest(t *testing.T) {
	var runs atomic.Int32
	refreshing, release := make(chan struct{}), make(chan struct{})
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		slow := func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				c.Response().Before(func() {
					if strings.Contains(c.Response().Header().Get("Cache-Status"), ";hit") {
						select { // it begins while the stale page is being sent
						case <-refreshing:
						case <-time.After(time.Second): // the page was fresh for a moment
						}
					}
				})
				return next(c)
			}
		}
		e.GET("/", func(c echo.Context) error {
			if runs.Add(1) == 2 {
				close(refreshing)
				<-release
			}
			c.Response().Header().Set("Cache-Control", "public, max-age=0, stale-while-revalidate=60")
			return c.String(200, "page")
		}, slow, guarded)
	})
	defer close(release)
	client := &http.Client{Timeout: 5 * time.Second}
	for runs.Load() < 2 {
		r, _ := http.NewRequest("GET", s.URL, nil)
		r.Header.Set("Authorization", "alice")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "page" || err != nil {
			t.Fatalf("%q, %v; %s", body, err, resp.Header.Get("Cache-Status"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A run that turns out to be no answer for its client leaves it its values.
func TestRequestKeepsItsContextValuesWhenRunAgain(t *testing.T) {
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		looksUp := func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				c.Set("user", "ann")
				return next(c)
			}
		}
		e.GET("/", func(c echo.Context) error {
			c.Response().Header().Set("Cache-Control", "private")
			c.Response().Header().Set("Vary", "User-Agent")
			c.Response().WriteHeader(200)
			c.Response().Flush()
			if c.Request().UserAgent() == "" {
				<-c.Request().Context().Done()
				time.Sleep(10 * time.Millisecond)
			}
			_, err := fmt.Fprint(c.Response(), c.Get("user"))
			return err
		}, looksUp, guarded)
	})
	if code, body := get(t, s.URL, "session=ann"); code != 200 || body != "ann" {
		t.Errorf("%d %q", code, body)
	}
}

// Wherever it is put, it finds the route, and is one run.
func TestEveryPlace(t *testing.T) {
	for name, routes := range map[string]func(e *echo.Echo, guarded echo.MiddlewareFunc, report echo.HandlerFunc){
		"Use":   func(e *echo.Echo, g echo.MiddlewareFunc, h echo.HandlerFunc) { e.Use(g); e.GET("/a/report/:id", h) },
		"Pre":   func(e *echo.Echo, g echo.MiddlewareFunc, h echo.HandlerFunc) { e.Pre(g); e.GET("/a/report/:id", h) },
		"group": func(e *echo.Echo, g echo.MiddlewareFunc, h echo.HandlerFunc) { e.Group("/a", g).GET("/report/:id", h) },
		"group's Use": func(e *echo.Echo, g echo.MiddlewareFunc, h echo.HandlerFunc) {
			group := e.Group("/a")
			group.Use(g)
			group.GET("/report/:id", h)
		},
		"route": func(e *echo.Echo, g echo.MiddlewareFunc, h echo.HandlerFunc) { e.GET("/a/report/:id", h, g) },
		"twice": func(e *echo.Echo, g echo.MiddlewareFunc, h echo.HandlerFunc) { e.Use(g); e.GET("/a/report/:id", h, g) },
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
				routes(e, guarded, func(c echo.Context) error {
					return c.String(200, fmt.Sprintf("%s %s run %d", c.Path(), c.Param("id"), runs.Add(1)))
				})
			})
			for _, id := range []string{"7", "8"} {
				runs.Store(0)
				for range 3 {
					if code, body := get(t, s.URL+"/a/report/"+id); code != 200 || body != "/a/report/:id "+id+" run 1" {
						t.Errorf("%d %q", code, body)
					}
				}
			}
			if code, _ := get(t, s.URL+"/nowhere"); code != 404 {
				t.Errorf("%d", code)
			}
		})
	}
}

// Echo's router still answers 405 for a path that has only other methods.
func TestMethodNotAllowed(t *testing.T) {
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		e.Use(guarded)
		e.POST("/", func(c echo.Context) error { return c.NoContent(204) })
	})
	for range 2 {
		resp, err := http.Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 405 || !strings.Contains(resp.Header.Get("Allow"), "POST") {
			t.Errorf("%d, Allow %q", resp.StatusCode, resp.Header.Get("Allow"))
		}
	}
}

// Echo has routes for HEAD: their handlers make no page, nor does its answer 405.
func TestRoutesOfHeadMakeNoPage(t *testing.T) {
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		e.Use(guarded)
		page := func(c echo.Context) error { return c.String(200, "page") }
		e.GET("/both", page)
		e.HEAD("/both", func(c echo.Context) error { return c.NoContent(200) })
		e.GET("/get", page)
	})
	for path, code := range map[string]int{"/both": 200, "/get": 405} {
		resp, err := http.Head(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != code || !strings.Contains(resp.Header.Get("Cache-Status"), ";fwd=uri-miss") || strings.Contains(resp.Header.Get("Cache-Status"), ";stored") {
			t.Errorf("HEAD %s: %d, %s", path, resp.StatusCode, resp.Header.Get("Cache-Status"))
		}
		if code, body := get(t, s.URL+path); code != 200 || body != "page" {
			t.Errorf("GET %s: %d %q", path, code, body)
		}
	}
}

// An error is answered as Echo answers it, and the answer is judged like any other.
func TestErrorsAreAnsweredByEcho(t *testing.T) {
	var gone atomic.Int32
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		e.HTTPErrorHandler = func(err error, c echo.Context) {
			c.Response().Header().Set("X-Error", "ours")
			e.DefaultHTTPErrorHandler(err, c)
		}
		e.Use(guarded)
		e.GET("/gone", func(c echo.Context) error { gone.Add(1); return echo.NewHTTPError(http.StatusGone, "it has gone") })
		e.GET("/teapot", func(c echo.Context) error { return echo.NewHTTPError(418, "short and stout") })
		e.GET("/broken", func(c echo.Context) error { return errors.New("boom") })
	})
	for path, want := range map[string]struct {
		code int
		body string
	}{"/gone": {410, "it has gone"}, "/teapot": {418, "short and stout"}, "/broken": {500, "Internal Server Error"}} {
		for range 3 {
			resp, err := http.Get(s.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			s.settled(t) // or the next request may share this run
			if resp.StatusCode != want.code || !strings.Contains(string(body), want.body) || resp.Header.Get("X-Error") != "ours" {
				t.Errorf("%s: %d %q %v", path, resp.StatusCode, body, resp.Header)
			}
			// The next request may come before the turn has ended, and share its outcome.
			if status := resp.Header.Get("Cache-Status"); path != "/gone" && strings.Contains(status, ";hit") {
				t.Errorf("%s was stored: %s", path, status)
			}
		}
	}
	if gone.Load() != 1 {
		t.Errorf("410, which TTL is for, ran %d times", gone.Load())
	}
}

// Half a page is not stored: a handler that fails in the middle ends the connection.
func TestErrorInTheMiddleIsNotStored(t *testing.T) {
	var runs atomic.Int32
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		e.GET("/", func(c echo.Context) error {
			if runs.Add(1) == 1 {
				_ = c.String(200, "half")
				return errors.New("boom")
			}
			return c.String(200, "whole")
		}, guarded)
	})
	resp, err := http.Get(s.URL)
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err == nil {
		t.Error("half a page came as a whole one")
	}
	s.settled(t) // or this request would share the broken run's end
	code, body := get(t, s.URL)
	if code != 200 || body != "whole" {
		t.Errorf("%d %q", code, body)
	}
}

// A middleware inside that answers an error itself and hands it on, as Echo's
// loggers do, has answered it.
func TestErrorThatIsAnsweredInside(t *testing.T) {
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		logs := func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				err := next(c)
				if err != nil {
					c.Error(err)
				}
				return err
			}
		}
		e.GET("/", func(c echo.Context) error { return echo.ErrForbidden }, guarded, logs)
	})
	if code, body := get(t, s.URL); code != 403 || !strings.Contains(body, "Forbidden") {
		t.Errorf("%d %q", code, body)
	}
}

// Middlewares outside see the status and size of a response, from a run or from an entry.
func TestMiddlewaresOutside(t *testing.T) {
	type seen struct {
		status int
		size   int64
	}
	got := make(chan seen, 3)
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				err := next(c)
				got <- seen{c.Response().Status, c.Response().Size}
				return err
			}
		}, echomiddleware.Recover(), guarded)
		e.GET("/", func(c echo.Context) error { return c.String(200, "page") })
		e.GET("/panics", func(c echo.Context) error { panic("boom") })
	})
	for range 2 {
		get(t, s.URL)
		if g := <-got; g != (seen{200, 4}) {
			t.Error(g)
		}
	}
	if code, _ := get(t, s.URL+"/panics"); code != 500 {
		t.Error(code)
	}
}

func TestInformationalResponses(t *testing.T) {
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		e.GET("/", func(c echo.Context) error {
			c.Response().Header().Set("Link", "</a>; rel=preload")
			c.Response().Writer.WriteHeader(103)
			return c.String(200, "page")
		}, guarded)
	})
	var codes []int
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
		codes = append(codes, code)
		return nil
	}})
	r, _ := http.NewRequestWithContext(ctx, "GET", s.URL, nil)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(body) != "page" || !slices.Equal(codes, []int{103}) {
		t.Errorf("%d %q after %v", resp.StatusCode, body, codes)
	}
}
