package guard

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A BatchError says which keys of [Guard.GetMany] failed, and why. A fetch may
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
	if e == nil { // what wraps one may be asked
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
