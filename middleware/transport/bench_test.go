package transport_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// A 4 KiB response over loopback: from the upstream itself, and stored.
func BenchmarkTransport(b *testing.B) {
	body := bytes.Repeat([]byte("x"), 4<<10)
	v := newVendor(b, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(body)
	})
	run := func(name string, rt http.RoundTripper) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				buf := make([]byte, 8<<10)
				for pb.Next() {
					req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, v.URL, nil)
					if err != nil {
						b.Error(err)
						return
					}
					resp, err := rt.RoundTrip(req)
					if err != nil {
						b.Error(err)
						return
					}
					n, _ := io.ReadFull(resp.Body, buf)
					_ = resp.Body.Close()
					if n != len(body) {
						b.Errorf("read %d bytes", n)
						return
					}
				}
			})
		})
	}
	open, _ := redisFleet(b)
	near := func(o *transport.Options) { o.Near = guard.Near{MaxEntries: 100} }
	memory, redis, nearby := newTransport(b, memoryFleet(b)()), newTransport(b, open()), newTransport(b, open(), near)
	for _, rt := range []*transport.Transport{memory, redis, nearby} {
		ask(b, rt, v.URL)
		waitStored(b, rt, v.URL)
	}
	base := &http.Transport{MaxIdleConnsPerHost: 64}
	defer base.CloseIdleConnections()
	run("base", base)
	run("redis", redis)
	run("memory", memory)
	run("near", nearby)
}
