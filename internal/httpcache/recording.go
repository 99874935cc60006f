package httpcache

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
)

// A Recording is a body that one writer writes and any number of readers read from its
// beginning, each at its own pace. A reader that is slow or closed holds up neither the
// writer nor other readers, until the recording is paced: from then on the body is not
// kept, and the writer waits for the only reader.
type Recording struct {
	most int

	mu      sync.Mutex
	room    sync.Cond // for the writer of a paced recording
	buf     []byte    // bytes before its length do not change until the recording is paced
	base    int64     // offset of buf[0] in the body; 0 until the recording is paced
	flushes int       // each asks the readers to pass on at once the part that they have
	readers []*Reader
	paced   bool
	done    bool
	err     error
}

// MaxBody bounds the bodies that the options of either side allow to store, in bytes.
const MaxBody = 64 << 20

const (
	// window bounds the lead of a paced recording's writer, in bytes.
	window = 64 << 10
	// wakeAt is the number of bytes from which on a reader is woken without a Flush.
	wakeAt = 4 << 10
	// scratch is the size of the reads of Record in a paced recording.
	scratch = 32 << 10
)

var (
	// ErrTooLong is returned by Record when the body is longer than the recording's bound.
	ErrTooLong = errors.New("httpcache: the body is longer than the recording may be")
	// ErrNoReader is returned by Write and Record once a paced recording has no reader.
	ErrNoReader = errors.New("httpcache: the client has gone")
)

// NewRecording returns a recording of at most so many bytes.
func NewRecording(most int) *Recording {
	r := &Recording{most: most}
	r.room.L = &r.mu
	return r
}

// Fits reports whether the recording can keep n more bytes. A paced one keeps none.
func (r *Recording) Fits(n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paced || len(r.buf)+n <= r.most
}

// Write implements [io.Writer]. It blocks only while the recording is paced.
func (r *Recording) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.write(p)
}

func (r *Recording) write(p []byte) (int, error) {
	for n := 0; ; {
		part := p[n:]
		if r.paced {
			if len(r.readers) == 0 {
				return n, ErrNoReader
			}
			room := window - int(r.end()-r.readers[0].pos)
			if room <= 0 {
				r.wake(1)
				r.room.Wait()
				continue
			}
			part = part[:min(len(part), room)]
		}
		r.buf = append(r.buf, part...)
		r.wake(wakeAt)
		if n += len(part); n == len(p) {
			return n, nil
		}
	}
}

// end is the offset of the first byte that is not written. r.mu is held.
func (r *Recording) end() int64 { return r.base + int64(len(r.buf)) }

// wake wakes the readers that lack so many bytes. r.mu is held.
func (r *Recording) wake(least int64) {
	for _, rd := range r.readers {
		if r.end()-rd.pos >= least {
			rd.signal()
		}
	}
}

// Flush lets the readers pass on at once the part that is written. It returns
// ErrNoReader if the recording is paced and has no reader.
func (r *Recording) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushes++
	r.wake(0)
	if r.paced && len(r.readers) == 0 {
		return ErrNoReader
	}
	return nil
}

// Record writes and flushes a body to its end, whose size is expected; -1: unknown.
// It returns nil at the end, ErrTooLong if there is more than the bound, or the body's
// error. After ErrTooLong it may be called again once the recording is paced.
func (r *Recording) Record(body io.Reader, size int64) error {
	var own []byte
	for {
		space := r.space(size)
		if space == nil {
			if own == nil {
				own = make([]byte, scratch)
			}
			space = own
		}
		n, err := body.Read(space)
		more, werr := r.took(space[:n], own != nil)
		switch {
		case werr != nil:
			return werr
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case !more:
			return ErrTooLong
		}
	}
}

// space is room for the next read; nil if the recording is paced. Only the writer uses
// the buffer beyond its length.
func (r *Recording) space(size int64) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paced {
		return nil
	}
	if len(r.buf) == cap(r.buf) {
		next := max(4<<10, 2*len(r.buf))
		if size >= 0 && size < int64(r.most) && len(r.buf) == 0 {
			next = int(size) + 1 // the last read finds the end
		}
		grown := make([]byte, len(r.buf), max(min(next, r.most+1), len(r.buf)+1))
		copy(grown, r.buf)
		r.buf = grown
	}
	return r.buf[len(r.buf):cap(r.buf)]
}

// took adds the result of a read: of space, or of a slice of Record's own. It reports
// whether the recording can go on.
func (r *Recording) took(p []byte, own bool) (more bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own || r.paced { // or space has moved meanwhile
		if len(p) > 0 {
			_, err = r.write(p)
		}
	} else {
		r.buf = r.buf[:len(r.buf)+len(p)]
	}
	r.flushes++
	r.wake(1)
	return r.paced || len(r.buf) <= r.most, err
}

// End is called once, when there is no more. err is the error that readers get; nil: the
// body is whole.
func (r *Recording) End(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done, r.err = true, err
	r.wake(0)
	r.room.Broadcast()
}

// Pace ends the keeping: the writer is held to the pace of the reader, of which there may
// be one. A recording that has ended stays as it is. Pace returns false if the recording
// has not ended and has no reader.
func (r *Recording) Pace() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = r.paced || !r.done
	r.room.Broadcast()
	return r.done || len(r.readers) > 0
}

// Size is the number of bytes that were written.
func (r *Recording) Size() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.end()
}

// Kept returns the body if it is whole and was kept.
func (r *Recording) Kept() (body []byte, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf[:len(r.buf):len(r.buf)], r.done && r.err == nil && !r.paced
}

// A Reader reads a recording. One goroutine reads; another may close it.
type Reader struct {
	rec   *Recording
	woken chan struct{}

	// rec.mu guards these.
	pos     int64
	flushes int // that Next has returned
	closed  bool
}

// NewReader returns a reader of a recording that is not paced.
func (r *Recording) NewReader() *Reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	rd := &Reader{rec: r, woken: make(chan struct{}, 1)}
	r.readers = append(r.readers, rd)
	return rd
}

func (rd *Reader) signal() {
	select {
	case rd.woken <- struct{}{}:
	default:
	}
}

// Woken receives when there is more to be read, or when the recording has ended.
func (rd *Reader) Woken() <-chan struct{} { return rd.woken }

// Next returns the part that the reader lacks, which is valid until Took. flush: it is to
// be passed on at once. done: the recording has ended.
func (rd *Reader) Next() (part []byte, flush, done bool) {
	r := rd.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	flush, rd.flushes = rd.flushes != r.flushes, r.flushes
	return r.buf[rd.pos-r.base:], flush, r.done
}

// Took moves the reader on by n bytes.
func (rd *Reader) Took(n int) {
	rd.rec.mu.Lock()
	defer rd.rec.mu.Unlock()
	rd.move(n)
}

func (rd *Reader) move(n int) {
	r := rd.rec
	rd.pos += int64(n)
	if gone := int(rd.pos - r.base); r.paced && 2*gone >= len(r.buf) {
		r.buf = r.buf[:copy(r.buf, r.buf[gone:])]
		r.base = rd.pos
	}
	r.room.Broadcast()
}

// Read reads like an [io.Reader] and waits no longer than ctx. Errors: that of End,
// io.EOF at a whole body's end, the cause of ctx's end, and http.ErrBodyReadAfterClose.
func (rd *Reader) Read(ctx context.Context, p []byte) (int, error) {
	for {
		n, err, wait := rd.tryRead(p)
		if !wait {
			return n, err
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		select {
		case <-rd.woken:
		case <-ctx.Done():
		}
	}
}

func (rd *Reader) tryRead(p []byte) (n int, err error, wait bool) { //nolint:revive,staticcheck // wait qualifies both
	r := rd.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	part := r.buf[rd.pos-r.base:]
	switch {
	case rd.closed:
		return 0, http.ErrBodyReadAfterClose, false
	case len(part) > 0:
		n = copy(p, part)
		rd.move(n)
		return n, nil, false
	case r.done && r.err == nil:
		return 0, io.EOF, false
	case r.done:
		return 0, r.err, false
	}
	return 0, nil, len(p) > 0
}

// Close ends the reading. It returns true if the recording cannot go on without the
// reader.
func (rd *Reader) Close() (deserted bool) {
	r := rd.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	rd.closed = true
	r.readers = slices.DeleteFunc(r.readers, func(other *Reader) bool { return other == rd })
	rd.signal()
	r.room.Broadcast()
	return r.paced && !r.done
}
