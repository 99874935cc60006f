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
	answeredF             // finished
)

// carryOut sends the command, unless the caller has left already, and leaves
// its answer for the caller, or hands it to late if the caller has left.
func (h *handoff[T]) carryOut(send func() (T, error), late func(T, error)) error {
	h.mu.Lock()
	if h.settled {
		h.mu.Unlock()
		return nil
	}
	h.sent = true
	h.mu.Unlock()

	answer, err := send()

	h.mu.Lock()
	h.finished, h.answer = true, answer
	gone := h.settled
	h.mu.Unlock()
	if gone {
		late(answer, err)
	}
	return err
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
	return h.answer, answeredF
}
