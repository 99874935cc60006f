package cache

import (
	"cmp"
	"fmt"
	"math"

	"github.com/stampedeguard/stampede/internal/memstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// MemoryOptions configure [NewMemory]. The zero value of each field means its
// default.
type MemoryOptions struct {
	// MaxBytes bounds the values, with their keys and 256 bytes for each: the least
	// recently used go first. A larger value is refused ([ErrRefused]). Leases, pauses and
	// the records of failures and attempts do not count: they expire. Default 64 MiB.
	MaxBytes int64

	// MaxEntries bounds the number of values in the same way. Default: no bound.
	MaxEntries int
}

// Memory is a [Store] that keeps values and leases in one process. Its time is monotonic,
// and that of the testing/synctest bubble if there is one. It is safe for concurrent use.
type Memory struct{ s *memstore.Store }

// NewMemory returns an empty store.
func NewMemory(opts MemoryOptions) (*Memory, error) {
	if opts.MaxBytes < 0 || opts.MaxEntries < 0 {
		return nil, fmt.Errorf("cache: MemoryOptions has MaxBytes %d and MaxEntries %d, which must not be negative", opts.MaxBytes, opts.MaxEntries)
	}
	opts.MaxBytes = cmp.Or(opts.MaxBytes, 64<<20)
	opts.MaxEntries = cmp.Or(opts.MaxEntries, math.MaxInt)
	s, err := memstore.New(memstore.Options{MaxBytes: opts.MaxBytes, MaxEntries: opts.MaxEntries})
	if err != nil {
		return nil, err
	}
	return &Memory{s}, nil
}

// Join is for tests: it returns another store on the same data, like that of another
// process on the same Redis. Each store is closed for itself.
func (m *Memory) Join() *Memory { return &Memory{m.s.Join()} }

// Close gives back the store's leases. It never returns an error.
func (m *Memory) Close() error { return m.s.Close() }

// Unwrap is for package guard.
func (m *Memory) Unwrap() store.Store { return m.s }
