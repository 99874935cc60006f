package httpcache

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A Page is the value of a key: a response, the index of a response's variants, or an
// epoch. Its readers share it and do not change it.
type Page struct {
	Status  int // 0: it is no response
	Header  http.Header
	Trailer http.Header
	Body    []byte
	Gzip    []byte // the compressed body; nil: there is none

	Freshness rfc9111.Freshness // InitialAge at the time of storing
	Vary      []string          // names that the response varies on
	Variant   string            // rfc9111.VariantKey of the request that it answers
	HidesTags bool              // the stored header lacks some of the response's tags

	Index *Index // instead of a response
	Epoch string // instead of a response

	Length string    // of the body, as Content-Length has it
	Began  time.Time // the start of the run, if that was in this process
	Live   *Live     // the body is still being written; nil: it is whole
}

// A Live is the rest of a page that is still being written, for readers in its process.
type Live struct {
	Body    *Recording
	Since   time.Time     // when the page was as old as its InitialAge
	Trailer http.Header   // written before Body ends
	Leave   func(*Reader) // closes a reader of Body

	Over  chan struct{} // closed by End, when these are written
	Whole *Page         // nil: the body did not become whole, or is not kept
	Err   error         // why the body is not whole

	once sync.Once
}

// End tells requests that need the whole page whether there is one. The first call counts.
func (l *Live) End(whole *Page, err error) {
	l.once.Do(func() {
		l.Whole, l.Err = whole, err
		close(l.Over)
	})
}

// Stored is the page for the rules of package rfc9111.
func (p *Page) Stored() *rfc9111.Response {
	return &rfc9111.Response{Status: p.Status, Header: p.Header}
}

// UsableOnError reports whether the page's own terms allow it to be served, stale,
// instead of an error.
func (p *Page) UsableOnError() bool {
	return p.Freshness.StaleIfError > 0 || p.Freshness.StaleWhileRevalidate > 0
}

// UsableAt reports whether the page's own terms allow it to be served at an age, stale or in
// place of an error if it is not fresh.
func (p *Page) UsableAt(age time.Duration) bool {
	f := &p.Freshness
	past := max(f.StaleWhileRevalidate, f.StaleIfError)
	if f.NeverStale {
		past = 0
	}
	return !f.NoCache && age < f.Lifetime+past
}

// Reusable reports whether the page can answer requests that come after its own.
func (p *Page) Reusable() bool {
	f := &p.Freshness
	return f.InitialAge < f.Lifetime+max(f.StaleWhileRevalidate, f.StaleIfError) || rfc9111.HasValidator(p.Header)
}

// A Codec writes pages in a layout of its own. Decoding copies neither the body nor the
// strings of the header. All numbers are uvarints, and each string follows its length:
//
//	kind
//	epoch
//	or: gen, names, variants
//	or: status, flags, origin of the lifetime, four durations in ns, vary, variant, header, trailer, body, gzip
type Codec struct{}

const (
	codecID = 3

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
func (Codec) ID() byte { return codecID }

// Marshal implements [cache.Codec].
func (Codec) Marshal(v any) ([]byte, error) {
	p, ok := v.(*Page)
	if !ok || p == nil {
		return nil, fmt.Errorf("httpcache: %T is not a *Page", v)
	}
	switch {
	case p.Epoch != "":
		return appendString([]byte{kindEpoch}, p.Epoch), nil
	case p.Index != nil:
		b := appendString([]byte{kindIndex}, p.Index.Gen)
		b = appendStrings(b, p.Index.Names)
		return appendStrings(b, p.Index.Variants), nil
	}
	b := make([]byte, 0, 512+len(p.Body)+len(p.Gzip))
	b = append(b, kindResponse)
	b = binary.AppendUvarint(b, uint64(p.Status))
	f := &p.Freshness
	b = binary.AppendUvarint(b, bit(f.NoCache, flagNoCache)|bit(f.NeverStale, flagNeverStale)|bit(f.Immutable, flagImmutable)|
		bit(p.Gzip != nil, flagGzip)|bit(p.HidesTags, flagHidesTags))
	b = binary.AppendUvarint(b, uint64(f.Origin))
	for _, d := range []time.Duration{f.Lifetime, f.InitialAge, f.StaleWhileRevalidate, f.StaleIfError} {
		b = binary.AppendUvarint(b, uint64(max(d, 0)))
	}
	b = appendStrings(b, p.Vary)
	b = appendString(b, p.Variant)
	b = appendHeader(b, p.Header)
	b = appendHeader(b, p.Trailer)
	b = appendString(b, p.Body)
	if p.Gzip != nil {
		b = appendString(b, p.Gzip)
	}
	return b, nil
}

func bit(set bool, b uint64) uint64 {
	if set {
		return b
	}
	return 0
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

// Unmarshal implements [cache.Codec]. The page refers to data.
func (Codec) Unmarshal(data []byte, v any) error {
	into, ok := v.(**Page)
	if !ok {
		return fmt.Errorf("httpcache: %T is not a **Page", v)
	}
	r := pageReader{left: data}
	p := r.page()
	if r.damaged || len(r.left) > 0 {
		return fmt.Errorf("%w: the data is not a page of this layout", cache.ErrDamaged)
	}
	*into = p
	return nil
}

// A pageReader reads the output of Marshal. A length that exceeds the rest of the data
// is damage.
type pageReader struct {
	left    []byte
	damaged bool
}

func (r *pageReader) page() *Page {
	p := &Page{}
	switch r.byte() {
	case kindEpoch:
		p.Epoch = r.string()
		r.damaged = r.damaged || p.Epoch == ""
	case kindIndex:
		p.Index = &Index{Gen: r.string(), Names: r.strings(), Variants: r.strings()}
		r.damaged = r.damaged || p.Index.Gen == "" || len(p.Index.Names) == 0
	case kindResponse:
		r.response(p)
	default:
		r.damaged = true
	}
	return p
}

func (r *pageReader) response(p *Page) {
	p.Status = int(r.number(999))
	flags := r.number(31)
	p.HidesTags = flags&flagHidesTags != 0
	f := &p.Freshness
	f.NoCache, f.NeverStale, f.Immutable = flags&flagNoCache != 0, flags&flagNeverStale != 0, flags&flagImmutable != 0
	f.Origin = rfc9111.Origin(r.number(255))
	for _, d := range []*time.Duration{&f.Lifetime, &f.InitialAge, &f.StaleWhileRevalidate, &f.StaleIfError} {
		*d = time.Duration(r.number(1 << 62))
	}
	p.Vary, p.Variant = r.strings(), r.string()
	p.Header, p.Trailer = r.header(), r.header()
	p.Body = r.bytes()
	if flags&flagGzip != 0 {
		p.Gzip = r.bytes()
	}
	r.damaged = r.damaged || p.Status < 200
	p.Length = strconv.Itoa(len(p.Body))
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
