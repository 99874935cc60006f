package guard

import (
	"errors"

	"github.com/stampedeguard/stampede/cache"
)

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

// maxKeyText bounds a key in logs and errors: any bytes are a key, a whole URL say.
const maxKeyText = 200
