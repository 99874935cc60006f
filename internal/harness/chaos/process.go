package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/spawn"
)

// A process is a child as the parent sees it.
type process struct {
	*spawn.Process
	number int
	rec    *recorder
	done   chan report // answers to orders
}

// startProcess runs a child that has opened nothing yet.
func startProcess(number int, rec *recorder) (*process, error) {
	p := &process{number: number, rec: rec, done: make(chan report, 8)}
	read := spawn.Lines(p.hear)
	child, err := spawn.Start(childName, func(stdout io.Reader) error {
		defer rec.ended(number)
		return read(stdout)
	})
	if err != nil {
		return nil, err
	}
	p.Process = child
	return p, nil
}

func (p *process) hear(r *report) {
	if r.Done == "" {
		p.rec.add(p.number, r)
		return
	}
	if r.Idle != nil {
		p.rec.idle(p.number, r.Idle)
	}
	p.done <- *r
}

// order gives an order and waits until it is carried out.
func (p *process) order(ctx context.Context, o order) error {
	p.Tell(o)
	r, err := spawn.Await(ctx, p.Process, p.done)
	if err == nil && r.Err != "" {
		err = errors.New(r.Err)
	}
	if err != nil {
		return fmt.Errorf("chaos: process %d: %s: %w", p.number, o.Op, err)
	}
	return nil
}

// freeze stops it for d.
func (p *process) freeze(ctx context.Context, d time.Duration) error {
	from := now()
	if err := p.Stop(); err != nil {
		return err
	}
	wait(ctx, d)
	err := p.Cont()
	p.rec.frozen(p.number, from, now())
	return err
}

// close has it shut down in order, and waits until it is gone.
func (p *process) close(ctx context.Context) error {
	err := p.order(ctx, order{Op: "close"})
	_ = p.Wait(ctx)
	return err
}
