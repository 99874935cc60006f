package middleware

import (
	"bytes"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// compressAbove is the size in bytes below which compressing costs more than it
// saves.
const compressAbove = 1 << 10

// compress returns a page's body in gzip; nil if that isn't worth it.
func compress(p *page) []byte {
	if p.status != http.StatusOK || len(p.body) < compressAbove || len(p.header["Content-Encoding"]) > 0 || !isText(p.header.Get("Content-Type")) {
		return nil
	}
	if hasDigest(p) {
		return nil
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(p.body)
	if err2 := w.Close(); err != nil || err2 != nil || b.Len() > len(p.body)*9/10 {
		return nil
	}
	return b.Bytes()
}

// digests are of the bytes as the handler wrote them, encoding and all (RFC 9530): a
// client that checks one would find that others came.
var digests = []string{"Content-Digest", "Repr-Digest", "Digest", "Content-Md5"}

func hasDigest(p *page) bool {
	return slices.ContainsFunc(digests, func(name string) bool { return len(p.header[name])+len(p.trailer[name]) > 0 })
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

// encoded marks a response that there is in two encodings. What is in gzip has a
// weak ETag: its bytes are others.
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
