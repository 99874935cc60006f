package store

import (
	"fmt"
	"slices"
)

// Signal tells the end of a lease, or the state of the subscription that reports it.
type Signal byte

const (
	// Filled: the lease's value was stored, or a Set replaced the entry. The
	// message's body is the entry, or empty if the entry is large.
	Filled Signal = 'F'
	// FailedSignal: the lease's fetch failed; the body is the failure.
	FailedSignal Signal = 'E'
	// Released: the lease was given up without an outcome.
	Released Signal = 'R'
	// Deleted: the entry was deleted or marked stale, and any lease ended.
	Deleted Signal = 'D'
	// Confirmed never travels: the store says with it that the subscription is
	// live (again), so that whatever was sent before may have been missed.
	Confirmed Signal = 'C'
	// Traced: the body is the trace context of the lease's fetch ([TraceSize] bytes). It
	// precedes Filled and FailedSignal. It travels as a Released of no token, and its body is
	// the token and the trace context: a process that does not know it asks again.
	Traced Signal = 'T'
)

func (s Signal) String() string {
	switch s {
	case Filled:
		return "filled"
	case FailedSignal:
		return "failed"
	case Released:
		return "released"
	case Deleted:
		return "deleted"
	case Confirmed:
		return "confirmed"
	case Traced:
		return "traced"
	}
	return fmt.Sprintf("signal(%d)", byte(s))
}

// MaxMessageBody bounds the entry that rides in a wake-up: larger ones are read
// by each waiting process instead. A subscriber that is sent more than it can
// take in is disconnected by Redis, and its leases would look abandoned.
const MaxMessageBody = 64 << 10

// TraceSize is the size of a trace context: 16 bytes of trace ID, 8 of span ID, 1 of flags
// (W3C Trace Context).
const TraceSize = 25

// A Message is a wake-up: the outcome of the lease that Token names.
type Message struct {
	Signal Signal
	Token  Token
	Body   []byte
}

// Encode returns the message as it travels: one byte of signal, 16 of token,
// then the body.
func (m *Message) Encode() []byte { return m.Append(nil) }

// Append appends the message as it travels.
func (m *Message) Append(b []byte) []byte {
	if m.Signal == Traced {
		m = &Message{Signal: Released, Body: append(m.Token[:], m.Body...)}
	}
	b = append(slices.Grow(b, 1+TokenSize+len(m.Body)), byte(m.Signal))
	return append(append(b, m.Token[:]...), m.Body...)
}

// ParseMessage reads the output of [Message.Encode]; the body is not copied. It
// returns [ErrDamaged] for anything else.
func ParseMessage(b []byte) (Message, error) {
	if len(b) < 1+TokenSize {
		return Message{}, fmt.Errorf("%w: message of %d bytes", ErrDamaged, len(b))
	}
	m := Message{Signal: Signal(b[0]), Token: Token(b[1 : 1+TokenSize]), Body: b[1+TokenSize:]}
	if m.Signal == Released && m.Token.IsZero() && len(m.Body) == TokenSize+TraceSize {
		return Message{Signal: Traced, Token: Token(m.Body[:TokenSize]), Body: m.Body[TokenSize:]}, nil
	}
	switch m.Signal {
	case Filled, FailedSignal, Released, Deleted:
		return m, nil
	}
	return Message{}, fmt.Errorf("%w: message with unknown %v", ErrDamaged, m.Signal)
}

// A Watch delivers the wake-ups of one key. The store pushes; one goroutine
// receives from [Watch.C]. Close it when done.
type Watch struct {
	// C carries the wake-ups. It is never closed. When it is full further wake-ups are
	// dropped: a caller that finds any message in it acquires again.
	C <-chan Message

	c     chan Message
	close func()
}

// watchBuffer holds more wake-ups than a key sees between two looks.
const watchBuffer = 16

// NewWatch returns a watch that calls the given function on Close, for authors of
// stores.
func NewWatch(closer func()) *Watch {
	c := make(chan Message, watchBuffer)
	return &Watch{C: c, c: c, close: closer}
}

// Push hands m to the receiver and never blocks. It may be called from any
// goroutine.
func (w *Watch) Push(m Message) {
	select {
	case w.c <- m:
	default:
	}
}

// Close ends the watch. Call it once.
func (w *Watch) Close() { w.close() }

// Reading is the entry that rides in a Filled message, as a reading of age 0. It is not
// Found where the entry was too large to ride. Its tags have not been checked: one may
// have been deleted before the entry was stored.
func (m *Message) Reading() *Reading {
	r := &Reading{}
	r.Parse(m.Body, 0)
	return r
}
