package guard

import (
	"fmt"

	"github.com/klauspost/compress/s2"

	"github.com/stampedeguard/stampede/internal/store"
)

// compress returns payload in the block format of S2, an extension of Snappy's that starts
// with the length before compression. Incompressible payloads get slightly longer: the
// shorter form is stored. docs/decisions.md compares S2 with Zstandard.
func compress(payload []byte) []byte { return s2.Encode(nil, payload) }

// decompress returns the payload that compress was given. It returns [store.ErrDamaged] for
// any other bytes, and for a payload that says it was longer than limit bytes; that is
// looked at before anything is allocated.
func decompress(payload []byte, limit int) ([]byte, error) {
	n, err := s2.DecodedLen(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: compressed payload: %w", store.ErrDamaged, err)
	}
	if n > limit {
		return nil, fmt.Errorf("%w: compressed payload expands to %d bytes, at most %d are allowed", store.ErrDamaged, n, limit)
	}
	b, err := s2.Decode(nil, payload)
	if err != nil {
		return nil, fmt.Errorf("%w: compressed payload: %w", store.ErrDamaged, err)
	}
	return b, nil
}
