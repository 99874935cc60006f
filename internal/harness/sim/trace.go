package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// A Violation is a promise that was broken.
type Violation struct {
	Rule string // short and stable: the mutants' tests name it
	Step int
	Text string
}

func (v Violation) String() string { return fmt.Sprintf("step %d: %s: %s", v.Step, v.Rule, v.Text) }

// A history lists events in their order. The notes of goroutines during a step have no
// order, so they are sorted.
type history struct {
	start time.Time
	lines []string

	mu    sync.Mutex
	notes []string
}

// note may be called from any goroutine.
func (h *history) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes = append(h.notes, line)
}

// say is the scheduler's.
func (h *history) say(step int, format string, args ...any) {
	h.lines = append(h.lines, fmt.Sprintf("%5d %9.3fms  ", step, float64(time.Since(h.start))/float64(time.Millisecond))+fmt.Sprintf(format, args...))
}

// settle takes in the notes of the step that has just become quiet.
func (h *history) settle() {
	h.mu.Lock()
	notes := h.notes
	h.notes = nil
	h.mu.Unlock()
	slices.Sort(notes)
	for _, n := range notes {
		h.lines = append(h.lines, fmt.Sprintf("%5s %11s      %s", "", "", n))
	}
}
