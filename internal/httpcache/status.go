package httpcache

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
)

// ErrRejected is wrapped by every error that StatusError returns. It also stands for a
// failure with a status that has no error of its own.
var ErrRejected = errors.New("httpcache: the answer was a failure")

// Errors of runs and calls that answer none of the requests that waited for them.
var (
	ErrUnshared = errors.New("httpcache: the response is for the client of its run alone")
	ErrNotWhole = errors.New("httpcache: the response ended before it was whole")
)

var statusErrors = map[int]error{}

func init() {
	for _, status := range []int{
		400, 401, 402, 403, 404, 405, 406, 408, 409, 410, 412, 413, 414, 415, 416, 417, 421, 422, 425, 428, 429, 431, 451,
		500, 501, 502, 503, 504, 505, 507, 508, 520, 521, 522, 523, 524, 525, 526, 529, 530,
	} {
		statusErrors[status] = fmt.Errorf("%w: %d %s", ErrRejected, status, http.StatusText(status))
	}
}

// StatusError is the error that stands for a status in other processes.
func StatusError(status int) error {
	if err, ok := statusErrors[status]; ok {
		return err
	}
	return ErrRejected
}

// Errors are those that other processes recognise, by the names under which they travel
// (guard.Policy.Errors), with more of them.
func Errors(more map[string]error) map[string]error {
	all := map[string]error{"http-rejected": ErrRejected, "http-unshared": ErrUnshared, "http-not-whole": ErrNotWhole}
	for status, err := range statusErrors {
		all[fmt.Sprint("http-", status)] = err
	}
	maps.Copy(all, more)
	return all
}

// StatusOf is the status that an error stands for. It is 502 for a status that has no error
// of its own, and 0 for an error that stands for no status.
func StatusOf(err error) int {
	if !errors.Is(err, ErrRejected) {
		return 0
	}
	for status, known := range statusErrors {
		if errors.Is(err, known) {
			return status
		}
	}
	return http.StatusBadGateway
}
