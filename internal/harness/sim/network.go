package sim

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// weather is the state of a process's way to Redis.
type weather byte

const (
	fair    weather = iota
	refused         // connections are refused, and those there are have ended
	swallow         // nothing arrives, either way, and there is no error
)

func (w weather) String() string { return [...]string{"fair", "refused", "black hole"}[w] }

var (
	errRefused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	errTimeout = &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	errCut     = &net.OpError{Op: "read", Err: io.EOF}
	errDead    = errors.New("sim: the process is dead")
)

// A network lies between one process and Redis. Commands pass through a
// hook of the client, the subscription through a wire.
type network struct {
	proc    int
	owner   *process
	scripts *scripts
	dialer  func(ctx context.Context, network, addr string) (net.Conn, error)
	patient time.Duration // the client's ReadTimeout

	client *client

	mu      sync.Mutex
	weather weather
	open    bool // everything passes: the process is starting
	calls   []*call
	wires   []*wire
	arrived int
}

// newNetwork lays a network between a process and the server, with a client.
func (w *world) newNetwork(p *process) *network {
	n := &network{
		proc: p.id, owner: p, scripts: w.scripts, patient: w.plan.readTimeout,
		dialer: w.server.Options().Dialer, open: true,
	}
	options := func() *redis.Options {
		o := w.server.Options()
		o.MaxRetries, o.DialerRetries = -1, 1 // failures are the scheduler's
		return o
	}
	sub := options()
	sub.Dialer = n.dial
	n.client = &client{redis.NewClient(options()), redis.NewClient(sub)}
	n.client.AddHook(n)
	p.nets = append(p.nets, n)
	return n
}

// setsUp reports whether a command sets up a connection.
func setsUp(cmd redis.Cmder) bool {
	switch cmd.Name() {
	case "hello", "client", "auth", "select":
		return true
	}
	return false
}

// DialHook implements [redis.Hook].
func (n *network) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (n *network) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if setsUp(cmd) {
			return next(ctx, cmd)
		}
		// A sent command is carried out even if the caller has gone.
		return n.carry(ctx, []redis.Cmder{cmd}, func([]redis.Cmder) error { return next(context.WithoutCancel(ctx), cmd) })
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (n *network) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) == 0 || setsUp(cmds[0]) {
			return next(ctx, cmds)
		}
		return n.carry(ctx, cmds, func(some []redis.Cmder) error { return next(context.WithoutCancel(ctx), some) })
	}
}

// carry takes commands to Redis and their answers back, as the scheduler says.
func (n *network) carry(ctx context.Context, cmds []redis.Cmder, next func([]redis.Cmder) error) error {
	n.mu.Lock()
	open, weather := n.open, n.weather
	n.mu.Unlock()
	switch {
	case n.owner.isDead():
		return n.fail(cmds, errDead)
	case open:
		return next(cmds)
	case weather == refused:
		return n.fail(cmds, errRefused)
	}
	c := n.newCall(ctx, cmds)
	patience := time.NewTimer(n.patient)
	defer patience.Stop()
	defer n.leave(c)
	arrive := len(cmds)
	select {
	case why := <-c.request:
		some, isTorn := why.(torn)
		if why != nil && !isTorn {
			return n.fail(cmds, why)
		}
		if isTorn {
			arrive = int(some)
		}
	case <-patience.C:
		n.giveUp(c)
		return n.fail(cmds, errTimeout)
	case <-n.owner.dead:
		return n.fail(cmds, errDead)
	}
	var err error
	for i := range arrive { // one by one, so that each is judged by itself
		err = cmp.Or(err, next(cmds[i:i+1]))
		c.looks = append(c.looks, n.owner.w.book.look(n.owner.w))
	}
	n.mu.Lock()
	c.state, c.torn = executed, arrive < len(cmds)
	n.mu.Unlock()
	select {
	case why := <-c.answer:
		if some, isTorn := why.(torn); isTorn {
			return n.fail(cmds[some:], errCut)
		}
		if why != nil {
			return n.fail(cmds, why)
		}
		return err
	case <-patience.C:
		return n.fail(cmds, errTimeout)
	case <-n.owner.dead:
		return n.fail(cmds, errDead)
	}
}

// fail makes the commands ones that got no answer.
func (n *network) fail(cmds []redis.Cmder, why error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, cmd := range cmds {
		if c, ok := cmd.(interface{ SetVal(any) }); ok {
			c.SetVal(nil)
		}
		cmd.SetErr(why)
	}
	return why
}

func (n *network) leave(c *call) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.state == ghost {
		return
	}
	c.state = gone
	n.calls = slices.DeleteFunc(n.calls, func(o *call) bool { return o == c })
}

// giveUp is the client's: it has waited for its ReadTimeout. The command may
// still arrive.
func (n *network) giveUp(c *call) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.state = ghost
	for i, cmd := range c.cmds { // the client is free to use its own again
		c.cmds[i] = redis.NewCmd(context.Background(), cmd.Args()...)
	}
}

// pending lists the calls in an order that doesn't depend on which goroutine
// came first.
func (n *network) pending() []*call {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.Clone(n.calls)
	slices.SortStableFunc(all, func(a, b *call) int {
		if d := strings.Compare(a.label, b.label); d != 0 {
			return d
		}
		return a.arrival - b.arrival
	})
	return all
}

func (n *network) isTorn(c *call) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return c.torn
}

func (n *network) stateOf(c *call) callState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return c.state
}

// dial connects the subscription.
func (n *network) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	weather := n.weather
	n.mu.Unlock()
	switch {
	case n.owner.isDead():
		return nil, errDead
	case weather == refused:
		return nil, errRefused
	case weather == swallow:
		// Told at once: the client dials under a mutex, and in a bubble no time
		// passes while a goroutine waits for one.
		return nil, errTimeout
	}
	inner, err := n.dialer(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w := newWire(inner, n.owner.w.plan.many, n.owner.w.step)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wires = append(n.wires, w)
	return w, nil
}

// live is the process's subscribed connection, if it has one. Of several only
// the last is still in use.
func (n *network) live() *wire {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wires = slices.DeleteFunc(n.wires, (*wire).isEnded)
	if len(n.wires) == 0 {
		return nil
	}
	return n.wires[len(n.wires)-1]
}

// cut ends the subscribed connections.
func (n *network) cut() {
	n.mu.Lock()
	wires := slices.Clone(n.wires)
	n.mu.Unlock()
	for _, w := range wires {
		_ = w.kill(io.EOF)
	}
}

// turn changes the weather. Connections that are refused from now on end, with all
// that is under way on them.
func (n *network) turn(w weather) {
	n.mu.Lock()
	n.weather = w
	n.mu.Unlock()
	if w != refused {
		return
	}
	n.cut()
	for _, c := range n.pending() {
		switch n.stateOf(c) {
		case waiting:
			c.request <- errCut
		case executed:
			c.answer <- errCut
		}
	}
}

func (n *network) setOpen(open bool) {
	n.mu.Lock()
	n.open = open
	n.mu.Unlock()
}

// orphan has requests that are on their way go on without the client.
func (n *network) orphan() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.calls {
		if c.state == waiting {
			c.state = ghost
			for i, cmd := range c.cmds {
				c.cmds[i] = redis.NewCmd(context.Background(), cmd.Args()...)
			}
		}
	}
}

// A client sends its commands through one network's hook, and subscribes through
// its wires.
type client struct {
	*redis.Client
	sub *redis.Client
}

// Subscribe overrides that of redis.Client.
func (c *client) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	return c.sub.Subscribe(ctx, channels...)
}

func (c *client) Close() error { return errors.Join(c.Client.Close(), c.sub.Close()) }
