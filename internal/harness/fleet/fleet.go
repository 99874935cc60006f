package fleet

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// A Fleet is a number of children that run the same guard. Its methods may be
// called from any goroutine.
type Fleet struct {
	Log *Log

	cfg Config

	mu  sync.Mutex
	all []*Process // also those that are gone
}

// New returns a fleet without processes. Close it.
func New(cfg Config) *Fleet {
	if cfg.Guard == "" {
		cfg.Guard = "fleet"
	}
	return &Fleet{Log: newLog(), cfg: cfg}
}

// Run starts a fleet of n processes for a test: it fails the test if one
// doesn't start, and, when the test ends, kills them all and fails the test if
// one of them crashed or reported a race.
func Run(tb redistest.TB, n int, cfg Config) *Fleet {
	tb.Helper()
	f := New(cfg)
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Errorf("%v", err)
		}
	})
	for range n {
		if _, err := f.Start(tb.Context()); err != nil {
			tb.Fatalf("%v", err)
		}
	}
	return f
}

// Start adds a process and returns once its guard is open.
func (f *Fleet) Start(ctx context.Context) (*Process, error) {
	p, err := start(f.Log)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.all = append(f.all, p)
	f.mu.Unlock()
	if _, err := p.send(request{Op: "open", Open: &f.cfg}).await(ctx); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// Processes returns those that have not ended, oldest first.
func (f *Fleet) Processes() []*Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.all), func(p *Process) bool { return p.Died() != nil })
}

// Close kills all processes. It returns their reports of crashes and data
// races.
func (f *Fleet) Close() error {
	f.mu.Lock()
	all := f.all
	f.all = nil
	f.mu.Unlock()
	var errs []error
	for _, p := range all {
		errs = append(errs, p.Kill(), p.Complaint())
	}
	return errors.Join(errs...)
}
