package cache

import (
	"fmt"

	"github.com/klauspost/compress/s2"
)

// Compress returns payload in the block format of S2, an extension of Snappy's
// that starts with the length before compression. What doesn't compress comes
// out slightly longer: store whichever is the shorter, and say so with
// [FlagCompressed].
//
// S2 and not Zstandard: see docs/decisions.md for the measurement.
func Compress(payload []byte) []byte { return s2.Encode(nil, payload) }

// Decompress returns what [Compress] was given. It returns [ErrDamaged] for
// anything else, and for a payload that says it was longer than limit bytes:
// that is looked at before anything is allocated.
func Decompress(payload []byte, limit int) ([]byte, error) {
	n, err := s2.DecodedLen(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: compressed payload: %w", ErrDamaged, err)
	}
	if n > limit {
		return nil, fmt.Errorf("%w: compressed payload expands to %d bytes, at most %d are allowed", ErrDamaged, n, limit)
	}
	b, err := s2.Decode(nil, payload)
	if err != nil {
		return nil, fmt.Errorf("%w: compressed payload: %w", ErrDamaged, err)
	}
	return b, nil
}
