package middleware

import (
	"bytes"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/stampedeguard/stampede/internal/httpcache"
)

// compressAbove is the size in bytes below which compressing costs more than it
// saves.
const compressAbove = 1 << 10

// compress returns a page's body in gzip; nil if that does not pay.
func compress(p *httpcache.Page) []byte {
	if p.Status != http.StatusOK || len(p.Body) < compressAbove || len(p.Header["Content-Encoding"]) > 0 || !isText(p.Header.Get("Content-Type")) {
		return nil
	}
	if hasDigest(p) {
		return nil
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(p.Body)
	if err2 := w.Close(); err != nil || err2 != nil || b.Len() > len(p.Body)*9/10 {
		return nil
	}
	return b.Bytes()
}

// digests are fields with a digest of the bytes that the handler wrote (RFC 9530). With
// another encoding, a client's check would fail.
var digests = []string{"Content-Digest", "Repr-Digest", "Digest", "Content-Md5"}

func hasDigest(p *httpcache.Page) bool {
	return slices.ContainsFunc(digests, func(name string) bool { return len(p.Header[name])+len(p.Trailer[name]) > 0 })
}

func isText(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return false
	}
	switch t {
	case "application/json", "application/javascript", "application/xml", "application/wasm", "image/svg+xml", "application/manifest+json":
		return true
	}
	return strings.HasPrefix(t, "text/") || strings.HasSuffix(t, "+json") || strings.HasSuffix(t, "+xml")
}

// encoded marks a response that is stored in two encodings. The compressed one has a weak
// ETag, as its bytes differ.
func encoded(h http.Header, gzip bool) {
	h.Add("Vary", "Accept-Encoding")
	if !gzip {
		return
	}
	h.Set("Content-Encoding", "gzip")
	delete(h, "Accept-Ranges")
	if tag := h.Get("Etag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		h.Set("ETag", "W/"+tag)
	}
}

// acceptsGzip reads Accept-Encoding (RFC 9110, 12.5.3).
func acceptsGzip(h http.Header) bool {
	any := false
	for _, line := range h["Accept-Encoding"] {
		for part := range strings.SplitSeq(line, ",") {
			coding, params, _ := strings.Cut(part, ";")
			coding = strings.ToLower(strings.TrimSpace(coding))
			ok := quality(params) > 0
			switch coding {
			case "gzip", "x-gzip":
				return ok
			case "*":
				any = ok
			}
		}
	}
	return any
}

func quality(params string) float64 {
	name, value, found := strings.Cut(strings.TrimSpace(params), "=")
	if !found || !strings.EqualFold(strings.TrimSpace(name), "q") {
		return 1
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil {
		return 0
	}
	return q
}
