package guard

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// asNotFound is a fetch's error, as an ErrNotFound if the policy says that it means
// that. An error by which a fetch says something else to the guard stays as it is.
func (p *Policy) asNotFound(err error) error {
	if p.NotFound == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotModified) || errors.Is(err, errNotWanted) {
		return err
	}
	if !p.NotFound(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotFound, err)
}

// A failure is how a fetch's error travels to other processes: MessagePack, as
// docs/protocol.md describes it for other languages.
type failure struct {
	Text      string   `msgpack:"t"`
	Sentinels []string `msgpack:"s,omitempty"` // registered names, or reserved ones
	Panicked  bool     `msgpack:"p,omitempty"`
	PauseMS   int64    `msgpack:"r,omitempty"` // the key is not fetched for so long
	Budget    string   `msgpack:"b,omitempty"` // it was exhausted
	BudgetMS  int64    `msgpack:"x,omitempty"` // and may have something again after so long
}

// encodeFailure never fails: it leaves out values that can't be encoded.
func encodeFailure(err error, pause time.Duration, p *Policy) []byte {
	f := failure{Text: err.Error(), PauseMS: pause.Milliseconds()}
	if len(f.Text) > maxFailureText {
		f.Text = f.Text[:maxFailureText] + "… (cut)"
	}
	f.Text = strings.ToValidUTF8(f.Text, "?") // MessagePack's strings are UTF-8
	var panicked *PanicError
	f.Panicked = errors.As(err, &panicked)
	for name, sentinel := range p.Errors {
		if errors.Is(err, sentinel) {
			f.Sentinels = append(f.Sentinels, name)
		}
	}
	if errors.Is(err, ErrNotFound) {
		f.Sentinels = append(f.Sentinels, notFoundName)
	}
	if errors.Is(err, ErrFetchTimeout) {
		f.Sentinels = append(f.Sentinels, timeoutName)
	}
	var exhausted *ExhaustedError
	if errors.As(err, &exhausted) {
		f.Sentinels = append(f.Sentinels, exhaustedName)
		f.Budget, f.BudgetMS = exhausted.Budget, exhausted.RetryAfter.Milliseconds()
	}
	slices.Sort(f.Sentinels)
	b, encodeErr := msgpack.Marshal(&f)
	if encodeErr != nil {
		return nil // decodes as an unknown failure
	}
	return b
}

// decodeFailure is the inverse, and makes something of any bytes.
func decodeFailure(b []byte, p *Policy) *RemoteError {
	var f failure
	if len(b) > 2*maxFailureText+1024 {
		return &RemoteError{Text: fmt.Sprintf("its failure, of %d bytes, can't be read", len(b))}
	}
	if err := (cache.MsgPack{}).Unmarshal(b, &f); err != nil {
		return &RemoteError{Text: fmt.Sprintf("its failure can't be read: %v", err)}
	}
	e := &RemoteError{
		Text:       f.Text,
		Panicked:   f.Panicked,
		RetryAfter: wireDuration(f.PauseMS),
	}
	for _, name := range f.Sentinels {
		var sentinel error
		switch name {
		case notFoundName:
			sentinel = ErrNotFound
		case timeoutName:
			sentinel = ErrFetchTimeout
		case exhaustedName:
			sentinel = &ExhaustedError{Budget: f.Budget, RetryAfter: wireDuration(f.BudgetMS)}
		default:
			sentinel = p.Errors[name]
		}
		if sentinel != nil {
			e.Sentinels = append(e.Sentinels, sentinel)
		}
	}
	return e
}

// wireDuration is a duration that came from elsewhere, made sane.
func wireDuration(ms int64) time.Duration {
	return time.Duration(max(0, min(ms, store.MaxTTL.Milliseconds()))) * time.Millisecond
}

// isExhausted reports whether an error says that a budget had nothing left.
func isExhausted(err error) bool {
	var exhausted *ExhaustedError
	return errors.As(err, &exhausted)
}
