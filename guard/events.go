package guard

import (
	"errors"
	"strconv"

	"github.com/stampedeguard/stampede/cache"
)

// quote names a key in an error, which may end up in an event.
func (r *reporter) quote(key string) string {
	if r.hideKeys {
		return "a key"
	}
	return strconv.Quote(cutKey(key))
}

// endOfFetch is the kind of event that a fetch ends with.
func endOfFetch(err error) cache.EventKind {
	switch {
	case err == nil:
		return cache.FetchDone
	case errors.Is(err, ErrNotFound):
		return cache.FetchNotFound
	case errors.Is(err, ErrNotModified):
		return cache.FetchNotModified
	}
	return cache.FetchFailed
}

func cutKey(key string) string {
	if len(key) > maxKeyText {
		return key[:maxKeyText] + "… (cut)"
	}
	return key
}
