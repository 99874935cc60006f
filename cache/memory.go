package cache

import (
	"errors"
	"fmt"
	"math"

	"github.com/stampedeguard/stampede/internal/memstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// MemoryOptions configure [NewMemory]. The zero value of each field means its
// default.
type MemoryOptions struct {
	// MaxBytes bounds what the values take up, their keys and an allowance of
	// 256 bytes each included: the least recently used go first. A value that is
	// larger by itself is refused ([ErrRefused]). Default 64 MiB.
	//
	// Leases, pauses and the records of failures and attempts are neither counted
	// nor evicted: their own expiry bounds them.
	MaxBytes int64

	// MaxEntries bounds the number of values in the same way. Default: only
	// MaxBytes bounds it.
	MaxEntries int
}

// Memory is a [Store] that keeps values and leases in one process. Its time is monotonic,
// and the fake time of a testing/synctest bubble if it is used in one. It is safe for
// concurrent use.
type Memory struct{ s *memstore.Store }

// NewMemory returns an empty store.
func NewMemory(opts MemoryOptions) (*Memory, error) {
	var errs []error
	if opts.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("cache: MemoryOptions.MaxBytes is %d, must not be negative", opts.MaxBytes))
	}
	if opts.MaxEntries < 0 {
		errs = append(errs, fmt.Errorf("cache: MemoryOptions.MaxEntries is %d, must not be negative", opts.MaxEntries))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if opts.MaxBytes == 0 {
		opts.MaxBytes = 64 << 20
	}
	if opts.MaxEntries == 0 {
		opts.MaxEntries = math.MaxInt
	}
	s, err := memstore.New(memstore.Options{MaxBytes: opts.MaxBytes, MaxEntries: opts.MaxEntries})
	if err != nil {
		return nil, err
	}
	return &Memory{s}, nil
}

// Join returns another store on the same data, with a process name of its own: the two
// behave as the stores of two processes on one Redis. Each is closed by itself, and the
// data outlive both. It is meant for tests.
func (m *Memory) Join() *Memory { return &Memory{m.s.Join()} }

// Close gives back what the store holds. It never returns an error.
func (m *Memory) Close() error { return m.s.Close() }

// Unwrap is for package guard.
func (m *Memory) Unwrap() store.Store { return m.s }
