package middleware

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A page is what is stored under a key: a response, or what leads to one. It is
// shared by all who read it, and never changed.
type page struct {
	status  int
	header  http.Header
	trailer http.Header
	body    []byte
	gzip    []byte // the body, compressed; nil: it isn't

	freshness rfc9111.Freshness // InitialAge as of when it was stored
	vary      []string          // names it varies on
	variant   string            // what they were in the request that it answers

	hidesTags bool // it carries tags that its stored header does not tell

	ix    *index // instead of a response
	epoch string // instead of a response

	length string // of the body, as Content-Length has it

	began time.Time // when its run did, if that was in this process
}

// An index is what a page's own key holds once a response has said Vary: the
// names, and the variants there are. The variants' own keys depend on gen, so that
// they are gone with the index. Those from before a soft purge have the gen of then
// in front.
type index struct {
	gen      string
	names    []string
	variants []string
}

// usableOnError reports whether its own terms allow it to be served, stale,
// instead of an error.
func (p *page) usableOnError() bool {
	return p.freshness.StaleIfError > 0 || p.freshness.StaleWhileRevalidate > 0
}

// ofUse reports whether it is good for anybody but those who wait for it now.
func (p *page) ofUse() bool {
	f := &p.freshness
	return f.InitialAge < f.Lifetime+max(f.StaleWhileRevalidate, f.StaleIfError) || rfc9111.HasValidator(p.header)
}

// A pageCodec writes pages in a layout of its own: decoding one copies neither
// the body nor, but for the slices' heads, the header. All numbers are uvarints,
// and each string has its length in front:
//
//	kind
//	epoch
//	or: gen, names, variants
//	or: status, flags, six durations in ns, vary, variant, header, trailer, body, gzip
type pageCodec struct{}

const (
	pageCodecID = 3

	kindEpoch    = 'e'
	kindIndex    = 'i'
	kindResponse = 'r'

	flagNoCache    = 1
	flagNeverStale = 2
	flagImmutable  = 4
	flagGzip       = 8
	flagHidesTags  = 16
)

// ID implements [cache.Codec].
func (pageCodec) ID() byte { return pageCodecID }

// Marshal implements [cache.Codec].
func (pageCodec) Marshal(v any) ([]byte, error) {
	p, ok := v.(*page)
	if !ok || p == nil {
		return nil, fmt.Errorf("middleware: %T is no page", v)
	}
	switch {
	case p.epoch != "":
		return appendString([]byte{kindEpoch}, p.epoch), nil
	case p.ix != nil:
		b := appendString([]byte{kindIndex}, p.ix.gen)
		b = appendStrings(b, p.ix.names)
		return appendStrings(b, p.ix.variants), nil
	}
	b := make([]byte, 0, 512+len(p.body)+len(p.gzip))
	b = append(b, kindResponse)
	b = binary.AppendUvarint(b, uint64(p.status))
	f := &p.freshness
	var flags uint64
	for bit, set := range map[uint64]bool{
		flagNoCache: f.NoCache, flagNeverStale: f.NeverStale, flagImmutable: f.Immutable, flagGzip: p.gzip != nil,
		flagHidesTags: p.hidesTags,
	} {
		if set {
			flags |= bit
		}
	}
	b = binary.AppendUvarint(b, flags)
	b = binary.AppendUvarint(b, uint64(f.Origin))
	for _, d := range []time.Duration{f.Lifetime, f.InitialAge, f.StaleWhileRevalidate, f.StaleIfError} {
		b = binary.AppendUvarint(b, uint64(max(d, 0)))
	}
	b = appendStrings(b, p.vary)
	b = appendString(b, p.variant)
	b = appendHeader(b, p.header)
	b = appendHeader(b, p.trailer)
	b = appendString(b, p.body)
	if p.gzip != nil {
		b = appendString(b, p.gzip)
	}
	return b, nil
}

func appendString[S string | []byte](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendStrings(b []byte, all []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, s := range all {
		b = appendString(b, s)
	}
	return b
}

func appendHeader(b []byte, h http.Header) []byte {
	b = binary.AppendUvarint(b, uint64(len(h)))
	for name, values := range h {
		b = appendStrings(appendString(b, name), values)
	}
	return b
}

// Unmarshal implements [cache.Codec]. The page keeps data.
func (pageCodec) Unmarshal(data []byte, v any) error {
	into, ok := v.(**page)
	if !ok {
		return fmt.Errorf("middleware: %T can't hold a page", v)
	}
	r := pageReader{left: data}
	p := r.page()
	if r.damaged || len(r.left) > 0 {
		return fmt.Errorf("%w: no page of this layout", cache.ErrDamaged)
	}
	*into = p
	return nil
}

// A pageReader reads what Marshal wrote. It believes no length that is more than
// what is left.
type pageReader struct {
	left    []byte
	damaged bool
}

func (r *pageReader) page() *page {
	p := &page{}
	switch r.byte() {
	case kindEpoch:
		p.epoch = r.string()
		r.damaged = r.damaged || p.epoch == ""
	case kindIndex:
		p.ix = &index{gen: r.string(), names: r.strings(), variants: r.strings()}
		r.damaged = r.damaged || p.ix.gen == "" || len(p.ix.names) == 0
	case kindResponse:
		r.response(p)
	default:
		r.damaged = true
	}
	return p
}

func (r *pageReader) response(p *page) {
	p.status = int(r.number(999))
	flags := r.number(31)
	p.hidesTags = flags&flagHidesTags != 0
	f := &p.freshness
	f.NoCache, f.NeverStale, f.Immutable = flags&flagNoCache != 0, flags&flagNeverStale != 0, flags&flagImmutable != 0
	f.Origin = rfc9111.Origin(r.number(255))
	for _, d := range []*time.Duration{&f.Lifetime, &f.InitialAge, &f.StaleWhileRevalidate, &f.StaleIfError} {
		*d = time.Duration(r.number(1 << 62))
	}
	p.vary, p.variant = r.strings(), r.string()
	p.header, p.trailer = r.header(), r.header()
	p.body = r.bytes()
	if flags&flagGzip != 0 {
		p.gzip = r.bytes()
	}
	r.damaged = r.damaged || p.status < 200
	p.length = strconv.Itoa(len(p.body))
}

func (r *pageReader) byte() byte {
	if len(r.left) == 0 {
		r.damaged = true
		return 0
	}
	b := r.left[0]
	r.left = r.left[1:]
	return b
}

func (r *pageReader) number(most uint64) uint64 {
	n, size := binary.Uvarint(r.left)
	if size <= 0 || n > most {
		r.damaged, r.left = true, nil
		return 0
	}
	r.left = r.left[size:]
	return n
}

func (r *pageReader) bytes() []byte {
	n := r.number(uint64(len(r.left)))
	if n > uint64(len(r.left)) { // the number itself took some
		r.damaged, r.left = true, nil
		return nil
	}
	b := r.left[:n:n]
	r.left = r.left[n:]
	return b
}

func (r *pageReader) string() string { return string(r.bytes()) }

func (r *pageReader) strings() []string {
	n := r.number(uint64(len(r.left)))
	if n == 0 {
		return nil
	}
	all := make([]string, 0, min(n, 16))
	for ; n > 0 && !r.damaged; n-- {
		all = append(all, r.string())
	}
	return all
}

func (r *pageReader) header() http.Header {
	n := r.number(uint64(len(r.left)))
	if n == 0 {
		return nil
	}
	h := make(http.Header, min(n, 64))
	for ; n > 0 && !r.damaged; n-- {
		h[r.string()] = r.strings()
	}
	return h
}

// copyHeader copies a header into another: neither its maps nor its slices are
// shared with whoever answers next.
func copyHeader(to, from http.Header) {
	n := 0
	for _, values := range from {
		n += len(values)
	}
	all := make([]string, 0, n)
	for name, values := range from {
		start := len(all)
		all = append(all, values...)
		to[name] = all[start:len(all):len(all)]
	}
}

// addHeader is copyHeader for the header of a client's response, where what is further
// out may have set something already. A handler would have added to these fields: a
// cookie of another layer's stays, and so does what its part of the response varies on.
func addHeader(to, from http.Header) {
	vary, cookies := to["Vary"], to["Set-Cookie"]
	copyHeader(to, from)
	if len(vary) > 0 && len(from["Vary"]) > 0 {
		to["Vary"] = slices.Concat(vary, from["Vary"])
	}
	if len(cookies) > 0 && len(from["Set-Cookie"]) > 0 {
		to["Set-Cookie"] = slices.Concat(cookies, from["Set-Cookie"])
	}
}

// errNotWhole: a response ended before its time.
var errNotWhole = errors.New("middleware: the handler's response ended before it was whole")

// contains reports whether an index has a variant.
func (ix *index) contains(variant string) bool {
	return slices.ContainsFunc(ix.variants, func(v string) bool { return strings.HasSuffix(v, variant) })
}

// variantSize is that of a rfc9111.VariantKey.
const variantSize = 2 * sha256.Size

// suffix is what a variant's key ends with.
func (ix *index) suffix(variant string) string {
	for _, v := range ix.variants {
		if len(v) > len(variant) && strings.HasSuffix(v, variant) {
			return v
		}
	}
	return ix.gen + variant
}

// covers reports whether the keys under an index, or of a page without one (nil), tell
// apart what varies on the names.
func (ix *index) covers(names []string) bool {
	for _, name := range names {
		if ix == nil || !slices.Contains(ix.names, name) {
			return false
		}
	}
	return true
}

// randomName is 16 hexadecimal digits that nobody else has drawn.
func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
