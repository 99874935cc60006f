// Package tap lets tests look at the calls of a store, hold them up or answer them.
package tap

import (
	"context"
	"sync/atomic"

	"github.com/stampedeguard/stampede/internal/store"
)

// A Store passes calls on to another store. Functions that are nil leave their calls
// alone. It is a cache.Store.
type Store struct {
	store.Store
	// OnRead gets the reading of a key, alone or with others, and returns the reading that
	// the caller gets. It may block.
	OnRead    func(key string, r *store.Reading, err error) (*store.Reading, error)
	OnAcquire func(requests []store.Request) []store.Answer // nil: the store is asked
	OnWatch   func(key string) *store.Watch

	Lone, Many atomic.Int32 // reads of one key, and of many
}

// New returns a Store that passes everything on.
func New(s store.Holder) *Store { return &Store{Store: s.Unwrap()} }

// Unwrap implements [store.Holder].
func (s *Store) Unwrap() store.Store { return s }

// Read implements [store.Store].
func (s *Store) Read(ctx context.Context, prefix, key string, to store.Reader) {
	s.Lone.Add(1)
	if s.OnRead == nil {
		s.Store.Read(ctx, prefix, key, to)
		return
	}
	s.Store.Read(ctx, prefix, key, &reader{to, func(r *store.Reading, err error) (*store.Reading, error) { return s.OnRead(prefix+key, r, err) }})
}

type reader struct {
	store.Reader
	read func(r *store.Reading, err error) (*store.Reading, error)
}

// Answered implements [store.Reader].
func (t *reader) Answered(r *store.Reading, err error) {
	go func() { t.Reader.Answered(t.read(r, err)) }()
}

// ReadMany implements [store.Store].
func (s *Store) ReadMany(ctx context.Context, prefix string, keys []string, each func(int, *store.Reading, error)) {
	s.Many.Add(1)
	if s.OnRead == nil {
		s.Store.ReadMany(ctx, prefix, keys, each)
		return
	}
	var calls []func()
	s.Store.ReadMany(ctx, prefix, keys, func(i int, r *store.Reading, err error) {
		if r != nil {
			r = r.Keep()
		}
		calls = append(calls, func() {
			r, err := s.OnRead(prefix+keys[i], r, err)
			each(i, r, err)
		})
	})
	for _, call := range calls {
		call()
	}
}

// Acquire implements [store.Store].
func (s *Store) Acquire(ctx context.Context, requests []store.Request) []store.Answer {
	if s.OnAcquire != nil {
		if answers := s.OnAcquire(requests); answers != nil {
			return answers
		}
	}
	return s.Store.Acquire(ctx, requests)
}

// Watch implements [store.Store].
func (s *Store) Watch(key string) *store.Watch {
	if s.OnWatch != nil {
		return s.OnWatch(key)
	}
	return s.Store.Watch(key)
}

// Unread is an OnRead for which nothing can be read.
func Unread(string, *store.Reading, error) (*store.Reading, error) { return nil, store.ErrUnavailable }
