package cache

import "sync"

// A handoff passes the answer of an acquire, or the answers of many, from the
// goroutine that talks to Redis to the one that asked, which may leave first.
// Exactly one of them deals with the answer, or a grant would be nobody's.
type handoff[T any] struct {
	mu                      sync.Mutex
	sent, finished, settled bool
	answer                  T
}

// fate says what became of an acquire, as far as is known when its caller goes.
type fate byte

const (
	notSent   fate = iota // and never will be
	noAnswer              // sent; late deals with the answer, if one comes
	gotAnswer             // the answer is there, be it an error
)

// carryOut sends the command, unless the caller has left already, and leaves
// its answer for the caller, or hands it to late if the caller has left.
func (h *handoff[T]) carryOut(send func() (T, error), late func(T, error)) error {
	if !h.begin() {
		return nil
	}
	answer, err := send()
	if h.finish(answer) {
		late(answer, err)
	}
	return err
}

// begin says that the command is being sent. It answers false if the caller has
// left: then it must not be.
func (h *handoff[T]) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent = !h.settled
	return h.sent
}

// finish leaves the answer for the caller. It answers whether the caller has
// left.
func (h *handoff[T]) finish(answer T) (gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.finished, h.answer = true, answer
	return h.settled
}

// withdraw settles what isn't sent yet, and answers whether it has.
func (h *handoff[T]) withdraw() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.sent {
		h.settled = true
	}
	return h.settled
}

// settle is called once by the caller, when it goes on.
func (h *handoff[T]) settle() (answer T, _ fate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settled = true
	switch {
	case !h.sent:
		return answer, notSent
	case !h.finished:
		return answer, noAnswer
	}
	return h.answer, gotAnswer
}
