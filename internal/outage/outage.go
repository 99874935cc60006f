// Package outage finds the reason why a Redis node does not answer, so that errors can
// name the node and the cause.
//
// The Redis client hides the cause: it dials several times before it reports a refused
// connection, and most calls have ended by then. So a call without an answer in time
// starts a dial of its own, one at a time for each node. The error of that dial is kept
// until the node answers.
package outage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Node keeps the cause of one Redis node's outage. It is safe for concurrent use.
type Node struct {
	addr string
	dial func(context.Context) (net.Conn, error) // nil: the client doesn't show how

	outage atomic.Pointer[outage] // nil: the last call was answered

	mu      sync.Mutex
	dialing chan struct{} // closed when the running dial has ended; nil: no dial runs
}

// An outage lasts from the first failed call until the next answer.
type outage struct{ cause atomic.Pointer[error] }

// NewNode returns the node of a client, named by the address in the client's options. For
// a cluster's client these are the nodes from which the slots are read, and the first of
// them is dialled.
func NewNode(client any) *Node {
	n := &Node{}
	switch c := client.(type) {
	case interface{ Options() *redis.Options }:
		o := c.Options()
		n.addr = o.Addr
		n.dialWith(o.Dialer, o.Network, o.Addr)
	case interface{ Options() *redis.ClusterOptions }:
		o := c.Options()
		n.addr = strings.Join(o.Addrs, ", ")
		dialer := o.Dialer
		if dialer == nil {
			dialer = redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
		}
		if len(o.Addrs) > 0 {
			n.dialWith(dialer, "tcp", o.Addrs[0])
		}
	}
	return n
}

func (n *Node) dialWith(dialer func(ctx context.Context, network, addr string) (net.Conn, error), network, addr string) {
	if dialer != nil {
		n.dial = func(ctx context.Context) (net.Conn, error) { return dialer(ctx, network, addr) }
	}
}

// Answered ends an outage, if there is one.
func (n *Node) Answered() {
	if n.outage.Load() != nil {
		n.outage.Store(nil)
	}
}

// SaysNothing reports whether an error is only the end of a context, which has no cause.
func SaysNothing(err error) bool {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return false
	}
	var network *net.OpError // its timeouts count as the end of a context, too
	return !errors.As(err, &network)
}

// Failed records the error of a call, unless it says nothing.
func (n *Node) Failed(err error) {
	if SaysNothing(err) {
		return
	}
	n.current().cause.Store(&err)
}

func (n *Node) current() *outage {
	for {
		if o := n.outage.Load(); o != nil {
			return o
		}
		n.outage.CompareAndSwap(nil, &outage{})
	}
}

// errSilent: the node isn't down.
var errSilent = errors.New("it accepts connections, and sent no answer in time")

// Silent records that a call got no answer in time. It dials the node to find the cause,
// for at most d, unless such a dial runs. spawn starts a goroutine, or returns false. The
// dial may outlast d if the client's dialer ignores its context.
func (n *Node) Silent(ctx context.Context, spawn func(func()) bool, d time.Duration) {
	o := n.current()
	if n.dial == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dialing != nil {
		return
	}
	ended := make(chan struct{})
	if !spawn(func() {
		err := n.tryDial(ctx, d)
		if ctx.Err() == nil {
			o.cause.Store(&err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.dialing = nil
		close(ended)
	}) {
		return
	}
	n.dialing = ended
}

func (n *Node) tryDial(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	conn, err := n.dial(ctx)
	switch {
	case err == nil:
		_ = conn.Close()
		return errSilent
	case SaysNothing(err):
		return fmt.Errorf("no connection within %v", d)
	}
	return err
}

// Known waits for a running dial, until ctx ends.
func (n *Node) Known(ctx context.Context) {
	n.mu.Lock()
	dialing := n.dialing
	n.mu.Unlock()
	if dialing == nil {
		return
	}
	select {
	case <-dialing:
	case <-ctx.Done():
	}
}

// Explain adds the node's address and the cause of its outage to the text of err. It
// returns nil, and errors that name their node, unchanged.
func (n *Node) Explain(err error) error { return n.named(err, n.current()) }

// Name is Explain for an error that is the cause.
func (n *Node) Name(err error) error { return n.named(err, nil) }

func (n *Node) named(err error, o *outage) error {
	var named *Error
	if err == nil || errors.As(err, &named) {
		return err
	}
	return &Error{err, n.addr, o}
}

// An Error is the error of a call to one node. It unwraps to the call's own error alone:
// the cause may be from an earlier call.
type Error struct {
	err    error
	addr   string
	outage *outage
}

// Error includes the cause if it is known by now: a dial to find it may have begun with
// this very error.
func (e *Error) Error() string {
	text := e.err.Error()
	cause := ""
	if e.outage != nil {
		if why := e.outage.cause.Load(); why != nil {
			cause = (*why).Error()
		}
	}
	switch {
	case e.addr == "" && cause == "":
		return text
	case e.addr == "":
		return fmt.Sprintf("%s (Redis: %s)", text, cause)
	case cause == "":
		return fmt.Sprintf("%s (Redis at %s)", text, e.addr)
	}
	return fmt.Sprintf("%s (Redis at %s: %s)", text, e.addr, cause)
}

// Unwrap returns the call's own error.
func (e *Error) Unwrap() error { return e.err }
