package httpcache

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// A Recording is a body that one writer writes and any number of readers read from its
// beginning, each at its own pace. A reader that is slow or closed holds up neither the
// writer nor other readers. Once the recording is paced the body is not kept, and the
// writer waits for the fastest reader. It waits two seconds in all for readers that fall
// behind by more than the recording's bound, and then cuts such readers off: the memory is
// bounded, and so is the time for which a reader holds up others.
type Recording struct {
	most int

	mu      sync.Mutex
	room    sync.Cond // for the writer of a paced recording
	buf     []byte    // bytes before its length do not change until the recording is paced
	base    int64     // offset of buf[0] in the body; 0 until the recording is paced
	opened  int       // readers that there have been: several may refer to buf
	flushes int       // each asks the readers to pass on at once the part that they have
	readers []*Reader
	paced   bool
	over    bool // it was told that it can't go on: no reader may join it
	done    bool
	err     error

	patience time.Duration // for readers that are too far behind
}

// MaxBody bounds the bodies that the options of either side allow to store, in bytes.
const MaxBody = 64 << 20

const (
	// WakeAt is the number of bytes from which on a reader is woken without a Flush. A
	// server sends as much by itself.
	WakeAt = 4 << 10
	// window bounds the lead of a paced recording's writer, in bytes.
	window = 64 << 10
	// scratch is the size of the reads of Record in a paced recording.
	scratch = 32 << 10
	// patience is the time for which readers of a paced recording hold up others.
	patience = 2 * time.Second
)

var (
	// ErrTooLong is returned by Record when the body is longer than the recording's bound.
	ErrTooLong = errors.New("httpcache: the body is longer than the recording may be")
	// ErrTooSlow is the error of a reader that was cut off.
	ErrTooSlow = errors.New("httpcache: the client reads too slowly")
	// ErrNoReader is returned by Write and Record once a paced recording has no reader.
	ErrNoReader = errors.New("httpcache: the client has gone")
)

// NewRecording returns a recording of at most so many bytes.
func NewRecording(most int) *Recording {
	r := &Recording{most: most, patience: patience}
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
			room := window - int(r.end()-r.fastest())
			if room <= 0 {
				r.wake(1)
				r.room.Wait()
				continue
			}
			if r.waitForSlow() {
				continue
			}
			part = part[:min(len(part), room)]
		}
		r.buf = append(r.buf, part...)
		r.wake(WakeAt)
		if r.paced && r.patience <= 0 {
			r.cutOff()
		}
		if n += len(part); n == len(p) {
			return n, nil
		}
	}
}

// end is the offset of the first byte that is not written. r.mu is held.
func (r *Recording) end() int64 { return r.base + int64(len(r.buf)) }

// fastest is the position of the reader that has read most. r.mu is held.
func (r *Recording) fastest() (pos int64) {
	for _, rd := range r.readers {
		pos = max(pos, rd.pos)
	}
	return pos
}

// waitForSlow waits for readers that are too far behind, while there is patience left. It
// reports whether it has waited. r.mu is held.
func (r *Recording) waitForSlow() bool {
	if r.patience <= 0 || !slices.ContainsFunc(r.readers, r.isBehind) {
		return false
	}
	start := time.Now()
	t := time.AfterFunc(r.patience, r.room.Broadcast)
	r.room.Wait()
	t.Stop()
	r.patience -= time.Since(start)
	return true
}

func (r *Recording) isBehind(rd *Reader) bool { return r.end()-rd.pos > int64(r.most+window) }

// cutOff ends the readers that are too far behind. r.mu is held.
func (r *Recording) cutOff() {
	r.readers = slices.DeleteFunc(r.readers, func(rd *Reader) bool {
		if !r.isBehind(rd) {
			return false
		}
		rd.err = ErrTooSlow
		rd.signal()
		return true
	})
	r.trim()
}

// trim drops the bytes of a paced recording that all readers have. r.mu is held.
func (r *Recording) trim() {
	from := r.end()
	for _, rd := range r.readers {
		from = min(from, rd.pos)
	}
	gone := int(from - r.base)
	switch {
	case gone == 0 || 2*gone < len(r.buf):
		return
	case r.opened > 1: // another reader may be passing on a part of buf
		r.buf = slices.Clone(r.buf[gone:])
	default:
		r.buf = r.buf[:copy(r.buf, r.buf[gone:])]
	}
	r.base = from
}

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

// Record writes and flushes a body to its end. size is the expected size; -1: unknown.
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

// Pace ends the keeping: the writer is held to the pace of the fastest reader. A recording
// that has ended stays as it is. Pace returns false if the recording has not ended and has
// no reader.
func (r *Recording) Pace() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = r.paced || !r.done
	r.room.Broadcast()
	return !r.isDeserted()
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
	flushes int   // that Next has returned
	err     error // why the reader gets no more: it is closed or cut off
}

// isDeserted reports whether the recording cannot go on for want of a reader. r.mu is held.
func (r *Recording) isDeserted() bool {
	deserted := r.paced && !r.done && len(r.readers) == 0
	r.over = r.over || deserted
	return deserted
}

// NewReader returns a reader from the body's beginning; nil if that is not kept any more, or if
// the recording has lost its last reader.
func (r *Recording) NewReader() *Reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.base > 0 || r.over {
		return nil
	}
	rd := &Reader{rec: r, woken: make(chan struct{}, 1)}
	r.opened++
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

// Next returns a part that the reader lacks, which is valid until Took. flush: it is to be
// passed on at once. done: there is no more after it, for the reason that Err tells.
func (rd *Reader) Next() (part []byte, flush, done bool) {
	r := rd.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	if rd.err != nil {
		return nil, false, true
	}
	part = r.buf[rd.pos-r.base:]
	if r.paced && len(part) > scratch { // so that the pace and the bound count only parts that were passed on
		return part[:scratch], false, false
	}
	flush, rd.flushes = rd.flushes != r.flushes, r.flushes
	return part, flush, r.done
}

// Err is the error of an end that Next has told; nil: the body is whole.
func (rd *Reader) Err() error {
	rd.rec.mu.Lock()
	defer rd.rec.mu.Unlock()
	return cmp.Or(rd.err, rd.rec.err)
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
	if r.paced {
		r.trim()
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
	if rd.err != nil {
		return 0, rd.err, false
	}
	part := r.buf[rd.pos-r.base:]
	switch {
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
	rd.err = cmp.Or(rd.err, http.ErrBodyReadAfterClose)
	r.readers = slices.DeleteFunc(r.readers, func(other *Reader) bool { return other == rd })
	rd.signal()
	if r.paced {
		r.trim()
	}
	r.room.Broadcast()
	return r.isDeserted()
}
