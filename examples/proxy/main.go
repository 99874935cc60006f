// Command proxy is a caching reverse proxy: the middleware in front of
// httputil.ReverseProxy.
//
//	go run ./examples/proxy -listen 127.0.0.1:8080 -upstream http://127.0.0.1:9000
//
// It speaks HTTP/1.1 and, to clients that know it does, HTTP/2 without TLS (h2c).
// With -redis several proxies share their entries, and one of them at a time asks
// the upstream for a page.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware"
)

type config struct {
	listen, upstream, redis, via string
	ttl, stale, staleIfError     time.Duration
	heuristic, trustOrigin       bool
	maxBody                      int
}

// parse reads the command's arguments.
func parse(args []string) (config, error) {
	var c config
	f := flag.NewFlagSet("proxy", flag.ContinueOnError)
	f.StringVar(&c.listen, "listen", "127.0.0.1:8080", "address to listen on")
	f.StringVar(&c.upstream, "upstream", "", "URL of the server behind the proxy, required")
	f.StringVar(&c.redis, "redis", "", "URL of a Redis that proxies share; empty: memory of this process")
	f.StringVar(&c.via, "via", "stampede", "the proxy's name in Via; empty: none is added")
	f.DurationVar(&c.ttl, "ttl", 0, "lifetime of responses that state none; 0: see -heuristic")
	f.BoolVar(&c.heuristic, "heuristic", true, "responses that state no lifetime are fresh for a tenth of the time since Last-Modified, a day at most")
	f.DurationVar(&c.stale, "stale", 0, "how long stale responses are served during a refresh and instead of an error, if the response states no time of its own")
	f.DurationVar(&c.staleIfError, "stale-if-error", 0, "how long stale responses are served instead of an error, if that is longer than -stale")
	f.BoolVar(&c.trustOrigin, "trust-origin", false, "share pages among users as RFC 9111 allows: a cookie keeps no response from others that does not say private")
	f.IntVar(&c.maxBody, "max-body", 1<<20, "bytes of the largest body to store")
	return c, f.Parse(args)
}

func main() {
	c, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2) // parse has told the reason
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	l, err := net.Listen("tcp", c.listen)
	if err == nil {
		log.Printf("proxy: http://%s, in front of %s", l.Addr(), c.upstream)
		err = serve(ctx, l, c)
	}
	if err != nil {
		log.Fatal("proxy: ", err)
	}
}

// serve runs the proxy on a listener until ctx ends.
func serve(ctx context.Context, l net.Listener, c config) error {
	upstream, err := url.Parse(c.upstream)
	if err != nil || upstream.Host == "" {
		_ = l.Close()
		return fmt.Errorf("-upstream is %q, must be a URL like http://127.0.0.1:9000", c.upstream)
	}
	store, closeStore, err := open(c.redis)
	if err != nil {
		_ = l.Close()
		return err
	}
	defer closeStore()
	m, err := middleware.New(store, middleware.Options{
		Name: "stampede",
		// The upstream is taken to be strict about Vary, as HTTP asks of it.
		Forward:      []string{middleware.AllHeaders},
		TTL:          c.ttl,
		Stale:        c.stale,
		StaleIfError: c.staleIfError,
		Heuristic:    c.heuristic,
		TrustOrigin:  c.trustOrigin,
		StorePost:    true,
		MaxBody:      c.maxBody,
		Via:          c.via,
		Near:         guard.Near{MaxBytes: 64 << 20},
	})
	if err != nil {
		_ = l.Close()
		return err
	}
	defer m.Close()

	server := &http.Server{Handler: m.Wrap(hops(asSent(reverse(upstream)))), ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
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

// reverse is the proxy without a cache. The library removes hop-by-hop fields, and
// passes upgrades, trailers and informational responses on.
func reverse(upstream *url.URL) http.Handler {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // the client's encodings are between it and the upstream
	transport.MaxIdleConnsPerHost = 256
	return &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // at once
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.RawQuery = r.In.URL.RawQuery // also a query that isn't a form
			r.SetURL(upstream)
			r.Out.Host = r.In.Host
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
			r.SetXForwarded()
		},
	}
}

// asSent keeps the server from guessing the type of a body for an upstream that
// doesn't say it.
func asSent(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(untyped{w}, r) })
}

type untyped struct{ http.ResponseWriter }

func (w untyped) WriteHeader(status int) {
	if h := w.Header(); status >= 200 && len(h["Content-Type"]) == 0 {
		h["Content-Type"] = nil
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (w untyped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// open returns a store on Redis, or in memory without one.
func open(redisURL string) (cache.Store, func(), error) {
	if redisURL == "" {
		s, err := cache.NewMemory(cache.MemoryOptions{MaxBytes: 256 << 20})
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
	s, err := cache.NewRedis(client, cache.Options{Namespace: "proxy"})
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return s, func() { _ = s.Close(); _ = client.Close() }, nil
}
