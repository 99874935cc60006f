package cache

import "sync"

// A handoff passes the answer of an acquire from the goroutine that talks to
// Redis to the one that asked, which may leave first. Exactly one of them deals
// with the answer, or a grant would be nobody's.
type handoff struct {
	mu                      sync.Mutex
	sent, finished, settled bool
	answer                  Answer
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
func (h *handoff) carryOut(send func() (Answer, error), late func(Answer, error)) error {
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
func (h *handoff) settle() (Answer, fate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settled = true
	switch {
	case !h.sent:
		return Answer{}, notSent
	case !h.finished:
		return Answer{}, noAnswer
	}
	return h.answer, answeredF
}
