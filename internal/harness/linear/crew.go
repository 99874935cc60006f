package linear

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

// A Crew is a number of processes that carry out Loads on one Redis server.
type Crew struct {
	Server *redistest.Server

	cfg   Config
	lines []*redistest.Proxy // one for each seat, if they are to break

	mu    sync.Mutex // guards the rest
	seats []*process // those that are to carry out loads
	all   []*process // also those that are gone
	ops   []Op
}

// A process is a child as its parent sees it.
type process struct {
	*spawn.Process
	opened chan struct{} // closed when the guard is open
	loads  chan struct{} // one for each Load carried out
}

// Run starts a server and n processes for a test. When the test ends they are
// ended, and the test fails if one had crashed or reported a race.
func Run(tb redistest.TB, n int, cfg Config) *Crew {
	tb.Helper()
	c := &Crew{Server: redistest.RunStandalone(tb, redistest.StandaloneConfig{}), cfg: cfg}
	if cfg.Breakable {
		for range n {
			c.lines = append(c.lines, redistest.RunProxy(tb, c.Server.Addr()))
		}
	}
	c.seats = make([]*process, n)
	tb.Cleanup(func() {
		if err := c.close(); err != nil {
			tb.Errorf("%v", err)
		}
	})
	for i := range n {
		if err := c.start(tb.Context(), i); err != nil {
			tb.Fatalf("%v", err)
		}
	}
	return c
}

// start puts a new process on a seat.
func (c *Crew) start(ctx context.Context, seat int) error {
	p := &process{opened: make(chan struct{}), loads: make(chan struct{}, 1)}
	var err error
	if p.Process, err = spawn.Start(childName, func(stdout io.Reader) error { c.read(p, stdout); return nil }); err != nil {
		return err
	}
	c.mu.Lock()
	c.seats[seat] = p
	c.all = append(c.all, p)
	c.mu.Unlock()
	addr := c.Server.Addr()
	if c.cfg.Breakable {
		addr = c.lines[seat].Addr()
	}
	p.Tell(opening{c.cfg, addr})
	_, err = spawn.Await(ctx, p.Process, p.opened)
	return err
}

// read takes in the reports of a child, until it ends.
func (c *Crew) read(p *process, stdout io.Reader) {
	buf := make([]byte, 1000*recordSize)
	for have := 0; ; {
		n, err := stdout.Read(buf[have:])
		have += n
		whole := have / recordSize * recordSize
		c.take(p, buf[:whole])
		have = copy(buf, buf[whole:have])
		if err != nil {
			return
		}
	}
}

func (c *Crew) take(p *process, records []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(records) > 0; records = records[recordSize:] {
		switch o := parseRecord(records); o.Kind {
		case opened:
			close(p.opened)
		case finished:
			p.loads <- struct{}{}
		default:
			c.ops = append(c.ops, o)
		}
	}
}

// Carry has all processes carry out a load, and returns when they have.
func (c *Crew) Carry(ctx context.Context, l Load) error {
	_, err := c.carry(ctx, l, func() (map[string]int, error) { return nil, nil })
	return err
}

// CarryThroughFaults is Carry while faults happen, one after the other. A process
// that is killed is not waited for, but the one that takes its place. It answers
// how often each fault happened.
func (c *Crew) CarryThroughFaults(ctx context.Context, l Load) (map[string]int, error) {
	return c.carry(ctx, l, func() (map[string]int, error) { return c.plague(ctx, l) })
}

func (c *Crew) carry(ctx context.Context, l Load, meanwhile func() (map[string]int, error)) (map[string]int, error) {
	for seat := range c.seats {
		c.on(seat).Tell(l)
	}
	count, err := meanwhile()
	if err != nil {
		return count, err
	}
	for seat := range c.seats {
		p := c.on(seat)
		if _, err := spawn.Await(ctx, p.Process, p.loads); err != nil {
			return count, err
		}
	}
	return count, nil
}

// replace kills the process on a seat and has another go on with its load.
func (c *Crew) replace(ctx context.Context, seat int, l Load) error {
	if err := c.on(seat).Kill(); err != nil {
		return err
	}
	if err := c.start(ctx, seat); err != nil {
		return err
	}
	c.on(seat).Tell(l)
	return nil
}

func (c *Crew) on(seat int) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seats[seat]
}

// Take returns the histories told so far, by key, each in the order in which it
// was told, and forgets them.
func (c *Crew) Take() map[uint32][]Op {
	c.mu.Lock()
	ops := c.ops
	c.ops = nil
	c.mu.Unlock()
	histories := map[uint32][]Op{}
	for _, o := range ops {
		histories[o.Key] = append(histories[o.Key], o)
	}
	return histories
}

// close ends all processes, in order if they let it.
func (c *Crew) close() error {
	var errs []error
	for _, p := range c.all {
		_ = p.CloseInput()
	}
	for _, p := range c.all {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if err := p.Wait(ctx); errors.Is(err, context.DeadlineExceeded) {
			errs = append(errs, err, p.Kill())
		}
		cancel()
		errs = append(errs, p.Complaint())
	}
	return errors.Join(errs...)
}
