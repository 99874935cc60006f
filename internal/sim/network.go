package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
)

// weather is what a process's way to Redis is like.
type weather byte

const (
	fair    weather = iota
	refused         // connections are refused, and those there are have ended
	swallow         // nothing arrives, either way, and nobody says so
)

func (w weather) String() string { return [...]string{"fair", "refused", "black hole"}[w] }

var (
	errRefused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	errTimeout = &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	errCut     = &net.OpError{Op: "read", Err: io.EOF}
	errDead    = errors.New("sim: the process is dead")
)

// A network is what lies between one process and Redis. Commands pass through a
// hook of the client, the subscription through a wire.
type network struct {
	proc    int
	owner   *process
	scripts *scripts
	dialer  func(ctx context.Context, network, addr string) (net.Conn, error)
	patient time.Duration // the client's ReadTimeout

	mu      sync.Mutex
	weather weather
	open    bool // everything passes: the process is starting
	dead    chan struct{}
	calls   []*call
	wires   []*wire
	arrived int
}

// A call is a command, or a pipeline of them, on its way.
type call struct {
	n        *network
	cmds     []redis.Cmder
	commands []*command
	op       *op // whose it is, nil: the store's own
	label    string
	arrival  int

	request, answer chan verdict // the scheduler's decisions

	// Guarded by network.mu.
	state callState
	torn  bool // only the first of its commands arrived: it gets no answer
}

// A command is one of a call's.
type command struct {
	c     *call
	place int
	name  string // of the script, or the command
	key   string // a script's, as the server knows it
	token string // what acquire, fill, fail, release and extend name
}

type callState byte

const (
	waiting  callState = iota // for its way to Redis
	executed                  // and its answer is held
	ghost                     // the client has given up, and Redis may still get it
	gone
)

// A verdict is what becomes of a request or an answer; nil: it goes through.
type verdict error

// torn is the verdict on a pipeline whose connection ends in the middle: so many
// of its commands, or of their answers, arrive.
type torn int

func (torn) Error() string { return errCut.Error() }

func (n *network) isDead() bool {
	select {
	case <-n.dead:
		return true
	default:
		return false
	}
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
		// What was sent is carried out even if the caller has gone.
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
	case n.isDead():
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
	case <-n.dead:
		return n.fail(cmds, errDead)
	}
	err := next(cmds[:arrive])
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
	case <-n.dead:
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

func (n *network) newCall(ctx context.Context, cmds []redis.Cmder) *call {
	c := &call{
		n: n, cmds: slices.Clone(cmds),
		request: make(chan verdict), answer: make(chan verdict),
	}
	c.op = caller(ctx)
	var labels []string
	for i, cmd := range cmds {
		m := &command{c: c, place: i}
		labels = append(labels, n.describe(m, cmd))
		c.commands = append(c.commands, m)
	}
	if c.joint() {
		c.op = nil // of several, and sent in the name of the first
	}
	slices.Sort(labels) // a pipeline's order is that of a map
	c.label = fmt.Sprintf("%v %s", c.op, strings.Join(slices.Compact(labels), ", "))
	for _, m := range c.commands {
		n.owner.w.nameToken(m)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.arrived++
	c.arrival = n.arrived
	n.calls = append(n.calls, c)
	return c
}

// joint reports whether a call may have what several ops ask of leases.
func (c *call) joint() bool {
	switch c.commands[0].name {
	case "acquire", "fill", "fail", "release":
		return len(c.commands) > 1
	}
	return false
}

// describe names a command, and puts the mutant in the place of a script.
func (n *network) describe(m *command, cmd redis.Cmder) (label string) {
	args := cmd.Args()
	m.name = strings.ToLower(cmd.Name())
	if m.is("mget") {
		label = m.name
		for _, key := range args[1:] {
			label += " " + *key.(*string)
		}
		return label
	}
	if m.name != "evalsha" && m.name != "eval" {
		if len(args) > 1 {
			if key, ok := args[1].(string); ok {
				return m.name + " " + key
			}
		}
		return m.name
	}
	source := args[1].(string)
	how := ""
	if m.is("eval") {
		how = " (source)"
	}
	m.name = n.scripts.names[source]
	if swapped, ok := n.scripts.swap[source]; ok {
		args[1] = swapped
	}
	keys := args[2].(int)
	m.key = strings.TrimSuffix(strings.TrimSuffix(fmt.Sprint(args[3]), ":lease"), ":tries")
	switch m.name {
	case "acquire", "fill", "fail", "release", "extend":
		m.token = string(args[3+keys].([]byte))
	case "set":
		m.token = string(args[3+keys].([]byte)[:cache.TokenSize])
	}
	label = m.name + how + " " + fmt.Sprint(args[3])
	if m.is("release") || m.is("extend") {
		label += " of " + n.owner.w.tokenName(string(args[3+keys].([]byte)))
	}
	return label
}

// arg is an argument of a command's script, after its keys.
func (m *command) arg(i int) string {
	args := m.c.cmds[m.place].Args()
	switch v := args[3+args[2].(int)+i].(type) {
	case []byte:
		return string(v)
	case string:
		return v
	default:
		return fmt.Sprint(v)
	}
}

// reply is the script's reply, nil if it gave none.
func (m *command) reply() any {
	n := m.c.n
	n.mu.Lock()
	defer n.mu.Unlock()
	cmd, ok := m.c.cmds[m.place].(interface{ Result() (any, error) })
	if !ok {
		return nil
	}
	v, err := cmd.Result()
	if err != nil {
		return nil
	}
	return v
}

func (m *command) is(name string) bool { return m.name == name }

// on is the command of the call that is about the key, preferably about one of
// the tokens; else any.
func (c *call) on(key string, tokens ...string) *command {
	found := c.commands[0]
	for _, m := range c.commands {
		if m.key == key && m.token != "" && slices.Contains(tokens, m.token) {
			return m
		}
		if m.key == key && found.key != key {
			found = m
		}
	}
	return found
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
	case n.isDead():
		return nil, errDead
	case weather == refused:
		return nil, errRefused
	case weather == swallow:
		// Told at once: the client dials under a mutex, and in a bubble no time
		// passes while somebody waits for one.
		return nil, errTimeout
	}
	inner, err := n.dialer(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w := newWire(inner, n.owner.w.plan.many)
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

func (n *network) turn(w weather) {
	n.mu.Lock()
	n.weather = w
	n.mu.Unlock()
}

func (n *network) setOpen(open bool) {
	n.mu.Lock()
	n.open = open
	n.mu.Unlock()
}

// die ends the process's network. Requests that are on their way may be lost or
// not: they stay, as ghosts.
func (n *network) die() {
	n.mu.Lock()
	for _, c := range n.calls {
		if c.state == waiting {
			c.state = ghost
			for i, cmd := range c.cmds {
				c.cmds[i] = redis.NewCmd(context.Background(), cmd.Args()...)
			}
		}
	}
	close(n.dead)
	n.mu.Unlock()
	n.cut()
}

// end ends the network of a process that has been closed.
func (n *network) end() {
	if !n.isDead() {
		n.die()
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

// tokenName is a token as it stands in the trace: by the call that sent it, as
// the token itself is random.
func (w *world) tokenName(t string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch name, ok := w.tokens[t]; {
	case t == "":
		return "none"
	case ok:
		return name
	case len(t) == cache.TokenSize && w.byName[t[:8]] != nil:
		return fmt.Sprintf("p%d#?", w.byName[t[:8]].id)
	}
	return "foreign"
}

// nameToken gives a token that is sent for the first time its name.
func (w *world) nameToken(m *command) {
	t, c := m.token, m.c
	if t == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.tokens[t]; ok {
		return
	}
	// Not by whose it is: flights of one process that ask at one moment may do so
	// in any order.
	name := fmt.Sprintf("p%d/%s", c.n.proc, userKey(m.key))
	w.named[name]++
	w.tokens[t] = fmt.Sprintf("%s#%d", name, w.named[name])
}
