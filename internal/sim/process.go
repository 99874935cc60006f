package sim

import (
	"errors"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

const (
	namespace = "sim"
	guardName = "g"
)

// A process has a store, a guard, and a network between it and Redis. It lives
// once: another takes its place when it has crashed or left.
type process struct {
	id    int
	w     *world
	n     *network
	c     *client
	redis *cache.Redis
	guard *guard.Guard[string]
	name  string // 8 bytes

	frozen  bool
	crashed bool
	leaving bool
	closed  chan struct{} // guard and store have been closed
	closing error
	// lastDown is the last step at which Redis saw nobody on its liveness channel.
	lastDown int
}

func (w *world) newProcess() *process {
	p := &process{id: len(w.processes) + 1, w: w, closed: make(chan struct{})}
	p.n = &network{
		proc: p.id, owner: p, scripts: w.scripts, patient: w.plan.readTimeout,
		dialer: w.server.Options().Dialer, dead: make(chan struct{}), open: true,
	}
	options := func() *redis.Options {
		o := w.server.Options()
		o.MaxRetries, o.DialerRetries = -1, 1 // failures are the scheduler's
		return o
	}
	sub := options()
	sub.Dialer = p.n.dial
	p.c = &client{redis.NewClient(options()), redis.NewClient(sub)}
	p.c.AddHook(p.n)
	s, err := cache.NewRedis(p.c, cache.Options{
		Namespace: namespace, RedisTimeout: w.plan.redisTimeout,
		BreakerFailures: 1 << 30, // see [Run]
	})
	if err != nil {
		w.t.Fatal(err)
	}
	p.redis = s
	p.name = string(reflect.ValueOf(s).Elem().FieldByName("minter").Elem().FieldByName("process").Bytes())
	w.mu.Lock()
	w.byName[p.name] = p
	w.mu.Unlock()
	p.guard, err = guard.New[string](steady{s, w.plan.poll, w.plan.many || w.plan.unread}, guardName, w.plan.policy)
	if err != nil {
		w.t.Fatal(err)
	}
	p.n.setOpen(false)
	w.processes = append(w.processes, p)
	return p
}

// up reports whether calls can be made in the process.
func (p *process) up() bool { return !p.crashed && !p.leaving }

// crash ends the process as SIGKILL does: the kernel closes its connections.
// What is left of it in the bubble can reach nobody.
func (p *process) crash() {
	p.crashed = true
	p.n.die()
	for _, o := range p.w.ops {
		if o.p == p {
			o.forget()
		}
	}
	p.close()
}

// close ends guard and store, in order if the process lives.
func (p *process) close() {
	p.leaving = true
	go func() { // awaited through p.closed
		defer close(p.closed)
		p.closing = errors.Join(p.guard.Close(), p.redis.Close())
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

// watched reports whether Redis sees somebody on the process's liveness channel.
func (p *process) watched() bool {
	channel := namespace + ":alive:" + cache.Process([]byte(p.name)).String()
	return p.w.server.PubSubNumSub(channel)[channel] > 0
}

// The two below look into the library without asking it: what they count must be
// nothing at rest, and nobody else needs to know.

// tokens counts the tokens in the store's ledger, by their state.
func (p *process) tokens() map[uint64]int {
	all := map[uint64]int{}
	ledger := reflect.ValueOf(p.redis).Elem().FieldByName("ledger").Elem()
	defer lock(ledger)()
	for it := ledger.FieldByName("tokens").MapRange(); it.Next(); {
		all[it.Value().Elem().FieldByName("state").Uint()]++
	}
	return all
}

// flying counts the guard's flights, and the places of unguarded fetches taken.
func (p *process) flying() int {
	e := reflect.ValueOf(p.guard).Elem().FieldByName("engine").Elem()
	n := e.FieldByName("unguarded").Len()
	for _, f := range []string{"flights", "refreshes", "locals"} {
		fs := e.FieldByName(f)
		unlock := lock(fs)
		n += fs.FieldByName("live").Len()
		unlock()
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
