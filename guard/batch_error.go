package guard

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A BatchError says which keys of a call for many failed, and why. A fetch may
// return one too, for the keys it couldn't get; it is the caller's to read, and
// not to change.
type BatchError struct {
	Errs map[string]error

	hideKeys bool
}

// maxNamed is how many keys an error's text names.
const maxNamed = 3

func (e *BatchError) Error() string {
	keys := slices.Sorted(maps.Keys(e.Errs))
	var b strings.Builder
	fmt.Fprintf(&b, "guard: %d keys failed", len(keys))
	if len(keys) == 1 {
		b.Reset()
		b.WriteString("guard: 1 key failed")
	}
	for i, key := range keys[:min(len(keys), maxNamed)] {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		if !e.hideKeys {
			b.WriteString(strconv.Quote(key[:min(len(key), 64)]) + ": ")
		}
		fmt.Fprint(&b, e.Errs[key])
	}
	if more := len(keys) - maxNamed; more > 0 {
		fmt.Fprintf(&b, "; and %d more", more)
	}
	return b.String()
}

// Unwrap returns the keys' errors, in the order of the keys.
func (e *BatchError) Unwrap() []error {
	if e == nil { // a wrapping error may ask it
		return nil
	}
	errs := make([]error, 0, len(e.Errs))
	for _, key := range slices.Sorted(maps.Keys(e.Errs)) {
		if err := e.Errs[key]; err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// A manyFailure is a fetch's error, key by key.
type manyFailure struct {
	of    map[string]error // named by a BatchError
	whole error            // of keys without an error of their own
}

// failureOf takes an error apart that wraps one or more BatchErrors, as a fetch of two
// upstreams may have joined. Errors that were joined with them apply to the keys that they
// do not name.
func failureOf(err error) manyFailure {
	part, _ := errors.AsType[*BatchError](err)
	if part == nil {
		return manyFailure{whole: err}
	}
	all := map[string]error{}
	whole, found := takeApart(all, err)
	if !found { // by a method of its own
		return manyFailure{of: part.Errs}
	}
	return manyFailure{of: all, whole: errors.Join(whole...)}
}

// takeApart adds the errors of keys that err wraps; of one key's the first counts. It
// returns the errors that BatchErrors were joined with, and whether there are any of
// those.
func takeApart(all map[string]error, err error) (others []error, found bool) {
	switch e := err.(type) {
	case nil:
		return nil, false
	case *BatchError:
		if e == nil {
			return nil, false
		}
		for key, why := range e.Errs {
			if all[key] == nil {
				all[key] = why
			}
		}
		return nil, true
	case interface{ Unwrap() []error }:
		for _, joined := range e.Unwrap() {
			rest, one := takeApart(all, joined)
			if !one {
				rest = []error{joined}
			}
			others, found = append(others, rest...), found || one
		}
		return others, found
	}
	return takeApart(all, errors.Unwrap(err))
}

// forKey is the error of one key; found reports whether the fetch returned a value for
// it.
func (f *manyFailure) forKey(key string, found bool) error {
	switch err := f.of[key]; {
	case err != nil:
		return err
	case found:
		return nil
	case f.whole != nil:
		return f.whole
	}
	return ErrNotFound
}

// batchError is the error of a call for many keys, some of which may have failed.
func (r *reporter) batchError(keys []string, errs []error) error {
	failed := map[string]error{}
	for i, err := range errs {
		if err != nil {
			failed[keys[i]] = err
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &BatchError{Errs: failed, hideKeys: r.hideKeys}
}
