package lock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/store"
)

// The errors of this package. Use errors.Is.
var (
	// ErrHeld: another holder has the lock. TryLock and TryDo return it at once, Lock and Do
	// when Options.Wait or Options.Attempts is used up. It comes as a [HeldError].
	ErrHeld = errors.New("lock: held")
	// ErrLost: the lock ended while it should have been held: it was not renewed in time, or
	// was ended by its ID. It is the cause of Lock.Context, and Extend, Unlock, Do and TryDo
	// return it.
	ErrLost = errors.New("lock: lost")
	// ErrUnavailable: no answer came, or none of a majority. No lock is granted then.
	ErrUnavailable = cache.ErrUnavailable
	// ErrForeign: the key of a lock holds a value that is no lock's. The error names the key.
	ErrForeign = store.ErrForeign
	// ErrSameServer: two backends of a quorum are the same server.
	ErrSameServer = errors.New("lock: two backends are the same server")
	// ErrClosed: the Locker or the Worker was closed. It is also the cause of the context of a
	// lock that Close has ended.
	ErrClosed = errors.New("lock: closed")

	errUnlocked   = errors.New("lock: unlocked")
	errNilContext = errors.New("lock: nil context (use context.Background())")
	errNilFunc    = errors.New("lock: nil function")
)

// A HeldError says that another holder has the lock.
type HeldError struct {
	Name   string
	Holder ID            // zero: not known
	Left   time.Duration // until the lock ends, unless it is renewed; 0: not known
	Votes  []Vote        // with more than one backend
}

func (e *HeldError) Error() string {
	text := fmt.Sprintf("lock: %q is held", cut(e.Name))
	if !e.Holder.IsZero() {
		text += fmt.Sprintf(" by %v", e.Holder)
	}
	if e.Left > 0 {
		text += fmt.Sprintf(" for another %v, unless it is renewed", e.Left)
	}
	return text + votesText(e.Votes)
}

// Is reports whether the target is [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// A QuorumError says that too few backends have answered. It wraps their errors, and
// [ErrUnavailable].
type QuorumError struct {
	Name  string
	Need  int // votes
	Votes []Vote
}

func (e *QuorumError) Error() string {
	return fmt.Sprintf("lock: %q: no quorum: %d of %d votes are needed%s", cut(e.Name), e.Need, len(e.Votes), votesText(e.Votes))
}

// Unwrap returns ErrUnavailable and the errors of the backends.
func (e *QuorumError) Unwrap() []error {
	errs := []error{ErrUnavailable}
	for _, v := range e.Votes {
		if v.Err != nil {
			errs = append(errs, v.Err)
		}
	}
	return errs
}

// A Vote is the last answer of one backend about a lock.
type Vote struct {
	Backend string
	State   VoteState
	Holder  ID            // VoteNo
	Left    time.Duration // VoteNo, VoteAbstain
	Err     error         // VoteError
}

// A VoteState is the kind of a [Vote].
type VoteState byte

// The answers of a backend.
const (
	VotePending VoteState = iota // no answer yet
	VoteYes                      // the lock is held there
	VoteNo                       // another holder has it, or it ended
	VoteAbstain                  // the server was started so recently that it may have forgotten a lock
	VoteError                    // no answer
)

func (s VoteState) String() string {
	return [...]string{"pending", "yes", "no", "abstains", "error"}[s]
}

func votesText(votes []Vote) string {
	if len(votes) < 2 {
		return ""
	}
	all := make([]string, len(votes))
	for i, v := range votes {
		all[i] = fmt.Sprintf("%s: %v", v.Backend, v.State)
		switch {
		case v.Err != nil:
			all[i] += fmt.Sprintf(" (%v)", v.Err)
		case !v.Holder.IsZero():
			all[i] += fmt.Sprintf(" (held by %v)", v.Holder)
		case v.Left > 0:
			all[i] += fmt.Sprintf(" (for %v)", v.Left)
		}
	}
	return " [" + strings.Join(all, "; ") + "]"
}
