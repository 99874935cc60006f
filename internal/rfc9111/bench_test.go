package rfc9111_test

import (
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// The cost of a hit: reading the request, the verdict, the form of the answer and
// Cache-Status.
func BenchmarkHit(b *testing.B) {
	req := request("GET\nAccept: text/html\nAccept-Encoding: gzip, br")
	resp := response("Cache-Control: max-age=60\nEtag: \"a\"\nDate: $0s")
	f := rfc9111.FreshnessOf(resp, shared)
	b.ReportAllocs()
	for b.Loop() {
		v, _ := rfc9111.MayServe(f, time.Second, rfc9111.ParseRequest(req.Header))
		if v != rfc9111.ServeFresh || rfc9111.AnswerFor(req, resp) != rfc9111.AnswerWhole {
			b.Fatal("not served")
		}
		_ = rfc9111.Status{Cache: "stampede", Hit: true, TTL: left(f.Left(time.Second))}.String()
	}
}

func BenchmarkVariantKey(b *testing.B) {
	req := request("GET\nAccept: text/html\nAccept-Encoding: gzip, br")
	names := []string{"Accept-Encoding"}
	b.ReportAllocs()
	for b.Loop() {
		_ = rfc9111.VariantKey(names, req)
	}
}

func BenchmarkStore(b *testing.B) {
	req := request("GET\nAccept: text/html")
	resp := response("Cache-Control: public, max-age=60, stale-while-revalidate=30\nEtag: \"a\"\nVary: Accept-Encoding\nDate: $0s\nContent-Type: text/html")
	b.ReportAllocs()
	for b.Loop() {
		d := rfc9111.Store(req, resp, shared)
		_ = rfc9111.StoredHeader(resp, d.Control, shared)
	}
}
