package sim

import (
	"bytes"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// A wire is a process's subscribed connection. Its bytes are held, frame
// by frame and in order, until the scheduler lets it through. The handshake and
// the signs of life pass by themselves.
type wire struct {
	inner net.Conn
	sorts bool       // see queue
	step  func() int // of the world

	mu         sync.Mutex
	subscribed bool     // the handshake is over
	follows    bool     // the client knows that it will hear of invalidations
	out        []parcel // from the client, held
	in         []parcel // from the server, held
	sent       int      // frames let through
	received   int
	readable   bytes.Buffer
	sending    bytes.Buffer // not yet a whole frame
	ended      error
	deadline   time.Time
	changed    chan struct{}
}

// A parcel is one frame.
type parcel struct {
	bytes []byte
	what  string // its first part, in lower case
	parts []string
	sent  int // step at which the server sent it
}

// about reports whether a parcel is of that kind and about the channel.
func (p *parcel) about(what, channel string) bool {
	return p.what == what && len(p.parts) > 1 && p.parts[1] == channel
}

func newWire(inner net.Conn, sorts bool, step func() int) *wire {
	w := &wire{inner: inner, sorts: sorts, step: step, changed: make(chan struct{})}
	go w.pump() // ends with the inner connection
	return w
}

func parcelOf(b []byte, parts []string) parcel {
	p := parcel{bytes: bytes.Clone(b), parts: parts}
	if len(parts) > 0 {
		p.what = strings.ToLower(parts[0])
	}
	return p
}

// auto reports whether a frame passes by itself once it is first in line.
func (p parcel) auto() bool { return p.what == "ping" || p.what == "pong" }

func (w *wire) pump() {
	var pending bytes.Buffer
	buf := make([]byte, 4096)
	for {
		n, err := w.inner.Read(buf)
		pending.Write(buf[:n])
		w.update(func() {
			for {
				whole, parts := frame(pending.Bytes())
				if whole == nil {
					break
				}
				p := parcelOf(whole, parts)
				p.sent = w.step()
				pending.Next(len(whole))
				if !w.subscribed {
					w.readable.Write(p.bytes)
				} else {
					w.in = append(w.in, p)
				}
			}
			if err != nil && w.ended == nil {
				w.ended = io.EOF
			}
		})
		if err != nil {
			return
		}
	}
}

func (w *wire) update(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *wire) Write(b []byte) (int, error) {
	var pass [][]byte
	var err error
	w.update(func() {
		if err = w.ended; err != nil {
			return
		}
		w.sending.Write(b)
		for {
			whole, parts := frame(w.sending.Bytes())
			if whole == nil {
				return
			}
			p := parcelOf(whole, parts)
			w.sending.Next(len(whole))
			w.subscribed = w.subscribed || p.what == "subscribe"
			if w.subscribed {
				w.queue(p)
			} else {
				pass = append(pass, p.bytes)
			}
		}
	})
	for _, b := range pass {
		if _, err := w.inner.Write(b); err != nil {
			return 0, err
		}
	}
	return len(b), err
}

// queue holds a frame of the client's. Where a caller may wait for several keys,
// the store's channels are wanted, and named, in the order of a map, by one frame
// or by several: those of a kind that follow each other are made one, sorted.
func (w *wire) queue(p parcel) {
	if w.sorts && (p.what == "subscribe" || p.what == "unsubscribe") {
		channels := p.parts[1:]
		if n := len(w.out); n > 0 && w.out[n-1].what == p.what {
			channels = slices.Concat(w.out[n-1].parts[1:], channels)
			w.out = w.out[:n-1]
		}
		slices.Sort(channels)
		parts := slices.Concat(p.parts[:1], slices.Compact(channels))
		p = parcelOf(encode(parts), parts)
	}
	w.out = append(w.out, p)
}

func (w *wire) Read(b []byte) (int, error) {
	for {
		w.mu.Lock()
		n, _ := w.readable.Read(b)
		ended, changed, deadline := w.ended, w.changed, w.deadline
		w.mu.Unlock()
		var timeout <-chan time.Time
		switch {
		case n > 0:
			return n, nil
		case ended != nil:
			return 0, ended
		case !deadline.IsZero():
			if !time.Now().Before(deadline) {
				return 0, os.ErrDeadlineExceeded
			}
			timer := time.NewTimer(time.Until(deadline))
			defer timer.Stop()
			timeout = timer.C
		}
		select {
		case <-changed:
		case <-timeout:
		}
	}
}

// Close is the client's.
func (w *wire) Close() error { return w.kill(net.ErrClosed) }

// kill ends the connection for both sides: held bytes are lost.
func (w *wire) kill(why error) error {
	w.update(func() {
		if w.ended == nil {
			w.ended = why
		}
		w.in, w.out = nil, nil
	})
	return w.inner.Close()
}

func (w *wire) LocalAddr() net.Addr              { return w.inner.LocalAddr() }
func (w *wire) RemoteAddr() net.Addr             { return w.inner.RemoteAddr() }
func (w *wire) SetDeadline(t time.Time) error    { return w.SetReadDeadline(t) }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }
func (w *wire) SetReadDeadline(t time.Time) error {
	w.update(func() { w.deadline = t })
	return nil
}

func (w *wire) isEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended != nil
}

// following reports whether the client may count on hearing of invalidations.
func (w *wire) following() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.follows && w.ended == nil
}

// heads are the frames that are first in line each way.
func (w *wire) heads() (out, in *parcel, sent, received int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.out) > 0 {
		p := w.out[0]
		out = &p
	}
	if len(w.in) > 0 {
		p := w.in[0]
		in = &p
	}
	return out, in, w.sent, w.received
}

// send lets the first frame through to the server.
func (w *wire) send() {
	var p parcel
	w.update(func() {
		if len(w.out) > 0 {
			p, w.out = w.out[0], w.out[1:]
			w.sent++
		}
	})
	if p.bytes != nil {
		_, _ = w.inner.Write(p.bytes) // a connection that has ended says so when it is read
	}
}

// receive lets the first frame through to the client, or loses it.
func (w *wire) receive(lose bool) {
	w.update(func() {
		if len(w.in) == 0 {
			return
		}
		p := w.in[0]
		w.in = w.in[1:]
		w.received++
		if !lose {
			w.readable.Write(p.bytes)
			w.follows = w.follows || p.about("subscribe", invalidations)
		}
	})
}

// beat lets the signs of life through that are first in line. It answers whether
// there were any.
func (w *wire) beat() bool {
	out, in, _, _ := w.heads()
	if out != nil && out.auto() {
		w.send()
		return true
	}
	if in != nil && in.auto() {
		w.receive(false)
		return true
	}
	return false
}
