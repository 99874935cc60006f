// Command echo serves a report that takes half a second with Echo, behind the
// middleware. Start it twice, on one Redis: README.md has the lines to try.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware"
	"github.com/stampedeguard/stampede/middleware/echoguard"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8091", "address to listen on")
	redisURL := flag.String("redis", os.Getenv("REDIS_URL"), "URL of the Redis that the processes share; empty: this process alone")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *redisURL); err != nil {
		log.Fatal("echo: ", err)
	}
}

func run(ctx context.Context, listen, redisURL string) error {
	store, closeStore, err := open(redisURL)
	if err != nil {
		return err
	}
	defer closeStore()
	m, err := middleware.New(store, middleware.Options{
		Host:  "reports.example", // by whatever port it is asked for
		TTL:   10 * time.Second,  // for handlers that don't say
		Stale: time.Minute,       // then served while one process runs the handler
		Near:  guard.Near{MaxBytes: 16 << 20},
	})
	if err != nil {
		return err
	}
	defer m.Close()

	e := echo.New()
	pages := e.Group("", echoguard.Wrap(m)) // other routes tell about this process: health, metrics
	pages.GET("/report", report)
	pages.POST("/report", func(c echo.Context) error { return c.String(http.StatusOK, "noted\n") })
	pages.GET("/me", me)

	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: e}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	log.Printf("echo: listening on http://%s", l.Addr())
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

var runs atomic.Int64

// report is expensive, and the same for all clients. It sets no Cache-Control.
func report(c echo.Context) error {
	time.Sleep(500 * time.Millisecond)
	return c.String(http.StatusOK, fmt.Sprintf("report, run %d of process %d\n", runs.Add(1), os.Getpid()))
}

// me is a user's own page, and is private.
func me(c echo.Context) error {
	user, _, _ := c.Request().BasicAuth()
	c.Response().Header().Set("Cache-Control", "private")
	return c.String(http.StatusOK, fmt.Sprintf("page of %q\n", user))
}

// open returns a store on Redis, or in memory without one.
func open(redisURL string) (cache.Store, func(), error) {
	if redisURL == "" {
		s, err := cache.NewMemory(cache.MemoryOptions{})
		if err != nil {
			return nil, nil, err
		}
		return s, func() { _ = s.Close() }, nil
	}
	o, err := redis.ParseURL(redisURL)
	if err != nil {
		return nil, nil, err
	}
	client := redis.NewClient(o)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "reports"})
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return s, func() { _ = s.Close(); _ = client.Close() }, nil
}
