package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// A call is a command, or a pipeline of them, on its way.
type call struct {
	n        *network
	cmds     []redis.Cmder
	commands []*command
	op       *op // the op that sent it, nil: the store's own
	label    string
	arrival  int

	request, answer chan verdict // the scheduler's decisions

	looks []map[string]content // into the server, after each of its commands

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
	token string // named by acquire, fill, fail, release and extend
}

type callState byte

const (
	waiting  callState = iota // for its way to Redis
	executed                  // and its answer is held
	ghost                     // the client has given up, and Redis may still get it
	gone
)

// A verdict is the fate of a request or an answer; nil: it goes through.
type verdict error

// torn is the verdict on a pipeline when its connection ends in the middle: so many
// of its commands, or of their answers, arrive.
type torn int

func (torn) Error() string { return errCut.Error() }

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
	if len(cmds) > 1 {
		c.op = nil // it may be of several ops, and is sent in the name of the first
	} else if c.op != nil && c.commands[0].isOf(c.op) {
		c.op.alone.Store(true)
	}
	slices.Sort(labels) // a pipeline's order is that of a map
	c.label = strings.Join(slices.Compact(labels), ", ")
	if !c.commands[0].isRead() { // Go decides which op of several sends a shared read
		c.label = fmt.Sprintf("%v %s", c.op, c.label)
	}
	for _, m := range c.commands {
		n.owner.w.nameToken(m)
	}
	n.owner.breaker.checkCall(c)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.arrived++
	c.arrival = n.arrived
	n.calls = append(n.calls, c)
	return c
}

// describe names a command.
func (n *network) describe(m *command, cmd redis.Cmder) (label string) {
	args := cmd.Args()
	m.name = strings.ToLower(cmd.Name())
	if m.is("mget") {
		label = m.name
		for _, key := range args[1:] {
			label += " " + fmt.Sprint(key)
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
	keys := args[2].(int)
	m.key = strings.TrimSuffix(strings.TrimSuffix(fmt.Sprint(args[3]), ":lease"), ":tries")
	switch m.name {
	case "seen":
		return m.name // it has no key, or one of no entry
	case "acquire", "fill", "fail", "release", "extend":
		m.token = text(args[3+keys])
	case "set":
		m.token = text(args[3+keys])[:store.TokenSize]
	}
	label = m.name + how + " " + fmt.Sprint(args[3])
	if m.is("release") || m.is("extend") {
		label += " of " + n.owner.w.tokenName(text(args[3+keys]))
	}
	return label
}

// arg is an argument of a command's script, after its keys.
func (m *command) arg(i int) string {
	args := m.c.cmds[m.place].Args()
	return text(args[3+args[2].(int)+i])
}

// text is an argument as the server gets it.
func text(arg any) string {
	switch v := arg.(type) {
	case []byte:
		return string(v)
	case *int64:
		return fmt.Sprint(*v)
	default:
		return fmt.Sprint(v) // a name or bytes behind a pointer have a method String
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

func (m *command) isRead() bool {
	return slices.Contains([]string{"get", "mget", "hmget", "time"}, m.name)
}

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
	case len(t) == store.TokenSize && w.byName[t[:8]] != nil:
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
	// Not by its op: flights of one process that ask at one moment may do so
	// in any order.
	name := fmt.Sprintf("p%d/%s", c.n.proc, userKey(m.key))
	w.named[name]++
	w.tokens[t] = fmt.Sprintf("%s#%d", name, w.named[name])
}

// changers are the ops that may have caused the change of a command. A call for several
// ops does not name the op of each command: then they are those of the process that ask for
// the same and have no call of their own.
func (m *command) changers() (all []*op) {
	if o := m.c.op; o != nil && m.isOf(o) {
		return []*op{o}
	}
	for _, o := range m.c.n.owner.w.ops {
		if o.p == m.c.n.owner && o.carriedOut == 0 && !o.alone.Load() && (o.kind == set || !o.w.done(o)) && m.isOf(o) {
			all = append(all, o)
		}
	}
	return all
}

// isOf reports whether a command is the change that an op asks for.
func (m *command) isOf(o *op) bool {
	ofKey := o.key == userKey(m.key)
	switch o.kind {
	case set:
		if !m.is("set") {
			return false
		}
		e, err := parse([]byte(m.arg(0)))
		return ofKey && err == nil && string(e.Payload) == o.sets()
	case del:
		return ofKey && m.is("delete")
	case expire:
		return ofKey && m.is("expire")
	case delTag:
		return m.is("tag") && m.arg(2) == "d" && o.key == tagOf(m.arg(5))
	case expireTag:
		return m.is("tag") && m.arg(2) == "x" && o.key == tagOf(m.arg(5))
	}
	return false
}
