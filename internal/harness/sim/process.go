package sim

import (
	"errors"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/store"
)

const (
	namespace = "sim"
	guardName = "g"

	invalidations = namespace + ":invalidations" // channel
)

// A process has a store and a guard, and between the store and its server a
// network. A memory store has a gate in place of it. A process lives once: another
// takes its place when it has crashed or left.
type process struct {
	id    int
	w     *world
	n     *network   // of the store; nil: it has a gate
	nets  []*network // all there are
	gate  *gate
	store cache.Store // a cache.Redis, or a cache.Memory
	guard *guard.Guard[string]
	name  string // 8 bytes

	budget    *budget.Budget // nil: none
	allowance allowance

	feed    feed
	breaker breaker
	frozen  bool
	crashed bool
	dead    chan struct{} // closed: nothing of it can reach anybody
	leaving bool
	closed  chan struct{} // guard and store have been closed
	closing error
	// lastDown is the last step at which Redis saw no subscriber of its liveness channel.
	lastDown int
}

func (w *world) newProcess() *process {
	p := &process{id: len(w.processes) + 1, w: w, closed: make(chan struct{}), dead: make(chan struct{})}
	p.breaker.p = p
	policy := w.plan.policy
	var between store.Store
	if w.memory != nil {
		p.store = w.memory.Join()
		p.gate = &gate{Store: p.store.Unwrap(), p: p}
		between = p.gate
	} else {
		p.store = w.newStore(p)
		between = p.store.Unwrap()
	}
	if w.plan.budget {
		p.budget = w.newBudget(p)
		policy.Budget = p.budget
	}
	p.name = string(p.inside().FieldByName("minter").Elem().FieldByName("process").Bytes())
	w.mu.Lock()
	w.byName[p.name] = p
	w.mu.Unlock()
	var err error
	var opts []guard.Option[string]
	if w.plan.tagged {
		opts = append(opts, guard.TagsOf(func(key, _ string) []string { return tagsOf(key) }))
	}
	p.guard, err = guard.New(steady{between, w.plan.poll, w.plan.many || w.plan.unread}, guardName, policy, opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, n := range p.nets {
		n.setOpen(false)
	}
	w.processes = append(w.processes, p)
	return p
}

// newStore makes a process's store on the server.
func (w *world) newStore(p *process) cache.Store {
	p.n = w.newNetwork(p)
	opts := cache.Options{Namespace: namespace, RedisTimeout: w.plan.redisTimeout, Observer: &p.breaker}
	if !w.plan.breakers {
		opts.BreakerFailures = 1 << 30 // see [Run]
	}
	s, err := cache.NewRedis(p.n.client, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// up reports whether calls can be made in the process.
func (p *process) up() bool { return !p.crashed && !p.leaving }

// crash ends the process as SIGKILL does: the kernel closes its connections.
// Its remains in the bubble reach no other process.
func (p *process) crash() {
	p.crashed = true
	p.die()
	for _, o := range p.w.ops {
		if o.p == p {
			o.forget()
		}
	}
	p.close()
}

// die ends the process's networks. Requests that are on their way may be lost or
// not: they stay, as ghosts.
func (p *process) die() {
	if p.isDead() {
		return
	}
	for _, n := range p.nets {
		n.orphan()
	}
	close(p.dead)
	for _, n := range p.nets {
		n.cut()
	}
}

func (p *process) isDead() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// close ends guard and store, in order if the process lives.
func (p *process) close() {
	p.leaving = true
	go func() { // awaited through p.closed
		defer close(p.closed)
		p.closing = errors.Join(p.guard.Close(), p.store.Close())
		if p.budget != nil {
			_ = p.budget.Close() // a slot that cannot be given back expires
		}
	}()
}

func (p *process) isClosed() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

// watched reports whether Redis sees a subscriber of the process's liveness channel.
func (p *process) watched() bool {
	if p.gate != nil {
		return !p.crashed && !p.isClosed()
	}
	channel := namespace + ":alive:" + store.Process([]byte(p.name)).String()
	return p.w.server.PubSubNumSub(channel)[channel] > 0
}

// The two below look into the library without asking it: their counts must be
// zero at rest, and no user needs them.

// inside gives access to the parts of the process's store.
func (p *process) inside() reflect.Value { return reflect.ValueOf(p.store.Unwrap()).Elem() }

// tokens counts the tokens of the store that may be a lease, by their state in a
// ledger; those of a memory store have one state.
func (p *process) tokens() map[uint64]int {
	all := map[uint64]int{}
	store := p.inside()
	if p.gate != nil {
		if n := store.FieldByName("leases").Len(); n > 0 {
			all[1] = n
		}
		return all
	}
	ledger := store.FieldByName("leases").Elem().FieldByName("ledger").Elem()
	defer lock(ledger)()
	for it := ledger.FieldByName("tokens").MapRange(); it.Next(); {
		all[it.Value().Elem().FieldByName("state").Uint()]++
	}
	return all
}

// flying counts the guard's flights, and the places of unguarded fetches taken.
func (p *process) flying() int {
	e := reflect.ValueOf(p.guard).Elem().FieldByName("engine").Elem()
	n := e.FieldByName("slots").Elem().FieldByName("taken").Len()
	fs := e.FieldByName("flights").Elem()
	defer lock(fs)()
	live := fs.FieldByName("live")
	for kind := range live.Len() {
		n += live.Index(kind).Len()
	}
	return n
}

// foreseeMiss has the guard expect that the next key is not stored, as it does
// after a row of misses. Rows that the history itself had would be most of it.
func (p *process) foreseeMiss() {
	const longRow = 1 << 16
	row := reflect.ValueOf(p.guard).Elem().FieldByName("engine").Elem().FieldByName("foresight").FieldByName("row")
	(*atomic.Int32)(row.Addr().UnsafePointer()).Store(longRow)
}

// lock takes the mutex named mu of a struct.
func lock(of reflect.Value) (unlock func()) {
	mu := (*sync.Mutex)(of.FieldByName("mu").Addr().UnsafePointer())
	mu.Lock()
	return mu.Unlock
}
