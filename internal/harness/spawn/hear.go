package spawn

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Lines returns a reader for [Start] of a child that writes lines of JSON: it
// calls hear with each. The error is of the first line that is none.
func Lines[T any](hear func(*T)) func(io.Reader) error {
	return func(stdout io.Reader) (odd error) {
		in := bufio.NewReaderSize(stdout, 1<<18)
		for {
			text, err := in.ReadBytes('\n')
			if err != nil {
				return odd // a kill leaves a part of a line
			}
			v := new(T)
			if err := json.Unmarshal(text, v); err == nil {
				hear(v)
			} else if odd == nil {
				odd = fmt.Errorf("the child wrote %q: %w", text, err)
			}
		}
	}
}

// Await returns the next of the answers, which the reader of p's output sends. It fails when
// the child is gone without one, or ctx ends.
func Await[T any](ctx context.Context, p *Process, answers <-chan T) (answer T, err error) {
	select {
	case answer = <-answers:
		return answer, nil
	case <-p.gone:
	case <-ctx.Done():
		return answer, p.wrap(fmt.Errorf("pid %d has not answered: %w", p.PID(), context.Cause(ctx)))
	}
	select {
	case answer = <-answers: // its last words
		return answer, nil
	default:
		return answer, p.Died()
	}
}
