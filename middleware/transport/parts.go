package transport

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// Parts of a response (RFC 9111, 3.3 and 3.4). A URL has one stored part, under a key of its
// own. It grows by further parts that touch it and have the same strong ETag. When it is
// whole, it is stored as the response to GET as well.
//
// A request for a part does not wait for others, as clients load the parts of a file side by
// side. It takes the turn of the part's key if that is free, and stores nothing otherwise. A
// Delete of the URL deletes the part before the whole. So it ends the turn of the part, or
// comes after the turn's end and finds the turn of the whole, or the whole.

// methodPart stands for the method in the keys of parts.
const methodPart = "GET-part"

func (x *exchange) partKey() string {
	custom, _ := customKey(x.p, x.own())
	key, _ := x.t.keys.key(methodPart, x.own(), custom, x.unusual)
	return key
}

// storedPart answers the request from the stored part; nil: it can't. whole is the stored
// page, which is not fresh; nil: there is none.
func (x *exchange) storedPart(whole *found) *http.Response {
	if !rfc9111.AsksForPart(x.own()) {
		return nil
	}
	f, _, ok := x.peek(slot{key: x.partKey()})
	if !ok || whole != nil && !rfc9111.Combines(whole.page.Header, f.page.Header) {
		return nil
	}
	have, ok := rfc9111.PartOf(f.page.Status, f.page.Header)
	if !ok || have.Size() != int64(len(f.page.Body)) {
		return nil
	}
	verdict, _ := rfc9111.MayServe(f.page.Freshness, f.age, x.control)
	want, ok := rfc9111.RequestedPart(x.own(), have.Total)
	if verdict != rfc9111.ServeFresh || !ok || !have.Has(want) || !rfc9111.IfRangeHolds(x.own().Header, f.page.Stored()) {
		return nil
	}
	h := make(http.Header, len(f.page.Header)+3)
	httpcache.CopyHeader(h, f.page.Header)
	h.Set("Content-Range", want.String())
	h.Set("Content-Length", strconv.FormatInt(want.Size(), 10))
	rfc9111.SetAge(h, f.age)
	x.hit(f).AppendTo(h)
	return x.response(http.StatusPartialContent, h, f.page.Body[want.First-have.First:want.Last-have.First+1])
}

// fetchPart passes the request on, and stores the part that it is answered with.
func (x *exchange) fetchPart() (*http.Response, error) {
	turn := x.beginPart()
	began := time.Now()
	resp, err := x.t.send(x.req.Context(), attempt{p: x.p, sent: &began}, x.req)
	if err != nil {
		release(turn)
		return nil, err
	}
	s := x.status(rfc9111.Status{Fwd: rfc9111.FwdPartial, Stored: x.recordPart(turn, resp, began)})
	if !s.Stored {
		release(turn)
	}
	resp.Request = x.req
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	s.AppendTo(resp.Header)
	return resp, nil
}

func release(turn *guard.Turn[*httpcache.Page]) {
	if turn != nil {
		turn.Release()
	}
}

// beginPart takes the turn of the part's key; nil: the response is not to be stored.
func (x *exchange) beginPart() *guard.Turn[*httpcache.Page] {
	if !rfc9111.AsksForPart(x.own()) {
		return nil
	}
	return httpcache.BeginBeside(x.ctx, x.t.guard, x.partKey(), guard.MaxAge(0))
}

// recordPart lets a response be stored when its client has read it. It reports whether the
// response can be stored.
func (x *exchange) recordPart(turn *guard.Turn[*httpcache.Page], resp *http.Response, began time.Time) bool {
	part, ok := rfc9111.PartOf(resp.StatusCode, resp.Header)
	if turn == nil || !ok || resp.Body == http.NoBody || part.Size() > int64(x.p.MaxBody) ||
		resp.ContentLength >= 0 && resp.ContentLength != part.Size() || !rfc9111.Combines(resp.Header, resp.Header) {
		return false
	}
	arrived := time.Now()
	dec := x.decide(http.StatusOK, rfc9111.WholeHeader(resp.Header), began, arrived)
	f := &dec.page.Freshness
	if !dec.storable || len(dec.page.Vary) > 0 || f.NoCache || f.Left(f.InitialAge) <= 0 {
		return false
	}
	b := &partBody{ReadCloser: resp.Body, x: x, turn: turn, part: part, page: dec.page, arrived: arrived}
	resp.Body = b
	return true
}

// A partBody is the body of a part. It stores the part at its end.
type partBody struct {
	io.ReadCloser
	x       *exchange
	turn    *guard.Turn[*httpcache.Page]
	part    rfc9111.Part
	page    *httpcache.Page // the whole without its body
	arrived time.Time

	kept bytes.Buffer
	once sync.Once // the turn is over
}

// Read implements [io.Reader].
func (b *partBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if int64(b.kept.Len()+n) <= b.part.Size() {
		b.kept.Write(p[:n])
	} else {
		b.end(false)
	}
	if err != nil {
		b.end(err == io.EOF && int64(b.kept.Len()) == b.part.Size())
	}
	return n, err
}

// Close implements [io.Closer].
func (b *partBody) Close() error {
	b.end(false)
	return b.ReadCloser.Close()
}

func (b *partBody) end(whole bool) {
	b.once.Do(func() {
		defer b.turn.Release()
		if whole {
			b.store()
		}
	})
}

// store stores the part, combined with the stored one if they touch, and the whole if that is
// all of it.
func (b *partBody) store() {
	body, part := b.kept.Bytes(), b.part
	if old := b.turn.Fill.Stale; old != nil {
		body, part = combine(*old, b.page.Header, body, part, int64(b.x.p.MaxBody))
	}
	b.page.Freshness.InitialAge += time.Since(b.arrived)
	f := &b.page.Freshness
	left := f.Left(f.InitialAge)
	if left <= 0 {
		return
	}
	stored := &httpcache.Page{Status: http.StatusPartialContent, Header: b.page.Header.Clone(), Body: body, Freshness: *f}
	stored.Header.Set("Content-Range", part.String())
	b.turn.Fill.TTL, b.turn.Fill.StaleFor = left, guard.Off
	var whole *guard.Turn[*httpcache.Page]
	if part.IsWhole() {
		whole = b.turn.Also(b.x.key, guard.MaxAge(0))
	}
	switch ok := b.turn.Store(stored); {
	case whole == nil:
	case !ok:
		whole.Release()
	default:
		b.page.Body = body
		b.page.Header.Set("Content-Length", strconv.Itoa(len(body)))
		b.x.t.terms.Set(whole.Fill, b.page)
		whole.Store(b.page)
	}
}

// combine returns a new part with the bytes of a stored one before and after it, if both are
// of one representation and there is no gap. header is that of the new part.
func combine(old *httpcache.Page, header http.Header, body []byte, part rfc9111.Part, most int64) ([]byte, rfc9111.Part) {
	had, ok := rfc9111.PartOf(old.Status, old.Header)
	both := rfc9111.Part{First: min(had.First, part.First), Last: max(had.Last, part.Last), Total: part.Total}
	if !ok || had.Size() != int64(len(old.Body)) || !had.Touches(part) || both.Size() > most || !rfc9111.Combines(old.Header, header) {
		return body, part
	}
	all := slices.Concat(old.Body[:max(0, part.First-had.First)], body)
	if had.Last > part.Last {
		all = append(all, old.Body[part.Last+1-had.First:]...)
	}
	return all, both
}
