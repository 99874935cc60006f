package measure

import (
	"context"
	"errors"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/telemetry"
	"github.com/stampedeguard/stampede/lock"
)

// ErrorType returns the class of an error of a guard or a lock, from a short and fixed list:
// for metrics, as their labels must not be error texts. It is empty for nil, and "other" for
// an error of the fetch that no guard knows.
func ErrorType(err error) string {
	var exhausted *guard.ExhaustedError
	var panicked *guard.PanicError
	var remote *guard.RemoteError
	if err == nil {
		return ""
	}
	for _, class := range []struct {
		is   error
		name string
	}{
		{guard.ErrNotFound, "not_found"},
		{guard.ErrFetchTimeout, "fetch_timeout"},
		{guard.ErrWaitTimeout, "wait_timeout"},
		{guard.ErrQuarantined, "quarantined"},
		{guard.ErrUnavailable, "unavailable"},
		{store.ErrUnavailable, "unavailable"},
		{store.ErrRefused, "refused"},
		{store.ErrInvalidated, "invalidated"},
		{store.ErrDamaged, "damaged"},
		{guard.ErrClosed, "closed"},
		{store.ErrClosed, "closed"},
		{guard.ErrReentrant, "reentrant"},
		{guard.ErrGoexit, "goexit"},
		{guard.ErrTooLarge, "too_large"},
		{telemetry.ErrNotWanted, "unwanted"},
		{context.Canceled, "canceled"},
		{context.DeadlineExceeded, "deadline_exceeded"},
		{lock.ErrHeld, "held"},
		{lock.ErrClosed, "closed"},
		{telemetry.ErrJobEnded, "job_ended"},
	} {
		if errors.Is(err, class.is) {
			return class.name
		}
	}
	switch {
	case errors.As(err, &exhausted):
		return "budget_exhausted"
	case errors.As(err, &panicked):
		return "panic"
	case errors.As(err, &remote):
		return "remote"
	}
	return "other"
}
