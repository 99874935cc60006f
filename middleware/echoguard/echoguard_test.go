package echoguard_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v5"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware"
	"github.com/stampedeguard/stampede/middleware/echoguard"
)

func serve(t *testing.T, routes func(e *echo.Echo, guarded echo.MiddlewareFunc)) *httptest.Server {
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
	return s
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
		e.GET("/report/:id", func(c *echo.Context) error {
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

// What another middleware has Set for the client reaches runs for that client
// alone.
func TestContextValuesStayWithTheirClient(t *testing.T) {
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		who := func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c *echo.Context) error {
				if user, err := c.Cookie("user"); err == nil {
					c.Set("user", user.Value)
				}
				return next(c)
			}
		}
		e.GET("/me", func(c *echo.Context) error {
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

func TestPreAndUse(t *testing.T) {
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		e.Pre(guarded)
		e.GET("/report/:id", func(c *echo.Context) error { return c.String(200, "report "+c.Param("id")+" "+c.Path()) })
	})
	for range 2 {
		if code, body := get(t, s.URL+"/report/7"); code != 200 || body != "report 7 /report/:id" {
			t.Errorf("%d %q", code, body)
		}
	}
	s = serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		e.Use(guarded)
		e.HTTPErrorHandler = func(c *echo.Context, err error) { _ = c.String(500, err.Error()) }
		e.GET("/", func(c *echo.Context) error { return c.String(200, "x") })
	})
	if code, body := get(t, s.URL); code != 500 || !strings.Contains(body, "Echo.Use") {
		t.Errorf("%d %q", code, body)
	}
}

func TestErrorsAreAnsweredByEcho(t *testing.T) {
	s := serve(t, func(e *echo.Echo, guarded echo.MiddlewareFunc) {
		e.GET("/teapot", func(c *echo.Context) error { return echo.NewHTTPError(http.StatusTeapot, "short and stout") }, guarded)
		e.GET("/broken", func(c *echo.Context) error { return errors.New("boom") }, guarded)
	})
	for range 2 {
		if code, body := get(t, s.URL+"/teapot"); code != http.StatusTeapot || !strings.Contains(body, "short and stout") {
			t.Errorf("%d %q", code, body)
		}
		if code, _ := get(t, s.URL+"/broken"); code != 500 {
			t.Errorf("%d", code)
		}
	}
}
