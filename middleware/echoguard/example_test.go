package echoguard_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware"
	"github.com/stampedeguard/stampede/middleware/echoguard"
)

// Both requests are answered by one run of the handler.
func ExampleWrap() {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	m, err := middleware.New(store, middleware.Options{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	e := echo.New()
	e.GET("/users/:id", func(c echo.Context) error {
		fmt.Println("reading user", c.Param("id"))
		return c.String(http.StatusOK, "Ada")
	}, echoguard.Wrap(m))

	for range 2 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/users/42", nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// reading user 42
	// 200 Ada
	// 200 Ada
}
