package measure

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/lock"
)

// A Guard is a guard without the type of its values.
type Guard interface {
	Counters() guard.Stats
	InFlight(max int) ([]guard.Flight, int)
	Reset(ctx context.Context, key string) error
	Inspect(ctx context.Context, key string) (guard.KeyState, error)
}

// A Budget is a budget of package budget.
type Budget interface {
	Known() guard.BudgetState
	Limit() budget.Limit
}

var (
	_ Budget = (*budget.Budget)(nil)
	_ Guard  = (*guard.Guard[any])(nil)
	_ storer = (*cache.Redis)(nil)
	_ locker = (*lock.Locker)(nil)
)

type (
	storer interface{ Nodes() []cache.NodeStatus }
	locker interface{ Held() int }
)

// A Registry knows the components that report to an observer. The zero Registry is ready
// for use, by several goroutines.
type Registry struct {
	mu      sync.Mutex // not held while a component is asked
	guards  map[string]*guards
	stores  map[int]storer
	budgets map[string]Budget
	lockers map[int]locker
	number  int
}

// guards are those of one name: a program may have several, or close one and make
// another.
type guards struct {
	live   map[int]Guard
	closed guard.Stats // of those that were closed: counters must not fall
}

// Attach implements [cache.Attacher].
func (r *Registry) Attach(name string, component any) (detach func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number++
	n := r.number
	switch self := component.(type) {
	case Guard:
		return r.attachGuardLocked(name, n, self)
	case Budget:
		if r.budgets == nil {
			r.budgets = map[string]Budget{}
		}
		r.budgets[name] = self
		return r.detach(func() {
			if r.budgets[name] == self {
				delete(r.budgets, name)
			}
		})
	case locker:
		if r.lockers == nil {
			r.lockers = map[int]locker{}
		}
		r.lockers[n] = self
		return r.detach(func() { delete(r.lockers, n) })
	case storer:
		if r.stores == nil {
			r.stores = map[int]storer{}
		}
		r.stores[n] = self
		return r.detach(func() { delete(r.stores, n) })
	}
	return func() {}
}

func (r *Registry) attachGuardLocked(name string, n int, self Guard) (detach func()) {
	if r.guards == nil {
		r.guards = map[string]*guards{}
	}
	if r.guards[name] == nil {
		r.guards[name] = &guards{live: map[int]Guard{}}
	}
	all := r.guards[name]
	all.live[n] = self
	return func() {
		last := self.Counters()
		r.mu.Lock()
		defer r.mu.Unlock()
		if all.live[n] == nil {
			return
		}
		delete(all.live, n)
		last.Fetching, last.Waiting, last.NearEntries, last.NearLive = 0, 0, 0, false
		last.ReserveEntries, last.ReserveBytes, last.Queued = 0, 0, 0
		addStats(&all.closed, &last)
	}
}

func (r *Registry) detach(remove func()) func() {
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		remove()
	}
}

// A Named is what all guards of one name have done.
type Named struct {
	Name  string
	Live  []Guard
	Stats guard.Stats // without InFlight
}

// Guards returns the guards by name.
func (r *Registry) Guards() []Named {
	r.mu.Lock()
	all := make([]Named, 0, len(r.guards))
	for name, g := range r.guards {
		all = append(all, Named{Name: name, Live: slices.Collect(maps.Values(g.live)), Stats: g.closed})
	}
	r.mu.Unlock()
	for i := range all {
		for _, g := range all[i].Live {
			s := g.Counters()
			addStats(&all[i].Stats, &s)
		}
	}
	slices.SortFunc(all, func(a, b Named) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// A NamedBudget is a budget's state.
type NamedBudget struct {
	Name  string
	State guard.BudgetState
	Limit budget.Limit
}

// Budgets returns the budgets by name.
func (r *Registry) Budgets() []NamedBudget {
	r.mu.Lock()
	budgets := maps.Clone(r.budgets)
	r.mu.Unlock()
	var all []NamedBudget
	for _, name := range slices.Sorted(maps.Keys(budgets)) {
		all = append(all, NamedBudget{name, budgets[name].Known(), budgets[name].Limit()})
	}
	return all
}

// Nodes returns the Redis nodes of all stores, each once. If several stores use a node,
// its status is that of the worst.
func (r *Registry) Nodes() []cache.NodeStatus {
	r.mu.Lock()
	stores := slices.Collect(maps.Values(r.stores))
	r.mu.Unlock()
	of := map[string]cache.NodeStatus{}
	for _, s := range stores {
		for _, n := range s.Nodes() {
			if known, twice := of[n.Addr]; twice {
				n.BreakerOpen = n.BreakerOpen || known.BreakerOpen
				n.Subscribed = n.Subscribed && known.Subscribed
			}
			of[n.Addr] = n
		}
	}
	return slices.SortedFunc(maps.Values(of), func(a, b cache.NodeStatus) int { return cmp.Compare(a.Addr, b.Addr) })
}

// Locks is the number of locks that are held now, and of lockers.
func (r *Registry) Locks() (held, lockers int) {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.lockers))
	r.mu.Unlock()
	for _, l := range all {
		held += l.Held()
	}
	return held, len(all)
}

// Collect records the numbers that components keep themselves.
func (r *Registry) Collect(record Recorder) {
	for _, g := range r.Guards() {
		collectGuard(g.Name, &g.Stats, record)
	}
	for _, n := range r.Nodes() {
		host, number := splitAddress(n.Addr)
		record(breakerStatus, flag(n.BreakerOpen), "open", host, number)
		record(breakerStatus, flag(!n.BreakerOpen), "closed", host, number)
		record(subscriptionStatus, flag(n.Subscribed), "live", host, number)
		record(subscriptionStatus, flag(!n.Subscribed), "lost", host, number)
	}
	if held, lockers := r.Locks(); lockers > 0 {
		record(lockActive, float64(held))
	}
	for _, b := range r.Budgets() {
		record(budgetRemaining, float64(b.State.Remaining), b.Name)
		record(budgetLimit, float64(b.Limit.Burst), b.Name)
	}
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func collectGuard(name string, s *guard.Stats, record Recorder) {
	for _, c := range Sources(s) {
		record(requests, float64(c.N), name, c.Source, c.Error)
	}
	record(fetchActive, float64(s.Fetching), name)
	record(fetchTimeout, s.FetchTimeout.Seconds(), name)
	record(waitActive, float64(s.Waiting), name)
	for answer, n := range Leases(s) {
		record(leaseRequests, float64(n), name, answer)
	}
	record(leaseLosses, float64(s.LeasesLost), name)
	record(nearEntries, float64(s.NearEntries), name)
	record(reserveEntries, float64(s.ReserveEntries), name)
	record(queuedInvalidations, float64(s.Queued), name)
	record(nearEvictions, float64(s.NearEvictions), name)
	record(nearBypasses, float64(s.NearBypasses), name)
}

// Leases are the answers to a guard's requests for leases.
func Leases(s *guard.Stats) map[string]uint64 {
	return map[string]uint64{
		"granted": s.Leases.Granted, "taken_over": s.Leases.TakenOver, "held": s.Leases.Held, "entry": s.Leases.Entry,
		"failed": s.Leases.Failed, "paused": s.Leases.Paused, "quarantined": s.Leases.Quarantined,
	}
}

// A SourceCount is a number of calls with one end: a source of the value, or an error.
type SourceCount struct {
	Source, Error string
	N             uint64
}

// Sources splits the calls of a guard by their end.
func Sources(s *guard.Stats) []SourceCount {
	e := &s.Errors
	return []SourceCount{
		{"near", "", s.NearHits},
		{"store", "", s.StoreHits},
		{"stale", "", s.Stale},
		{"own_fetch", "", s.Fetched - min(s.Fetched, s.FetchedUnguarded)},
		{"shared_fetch", "", s.Waited - min(s.Waited, s.WaitedUnguarded)},
		{"reserve", "", s.ReserveHits},
		{"unguarded", "", s.FetchedUnguarded + s.WaitedUnguarded},
		{"", "not_found", e.NotFound},
		{"", "fetch", e.Fetch},
		{"", "remote", e.Remote},
		{"", "panic", e.Panic},
		{"", "fetch_timeout", e.FetchTimeout},
		{"", "wait_timeout", e.WaitTimeout},
		{"", "quarantined", e.Quarantined},
		{"", "unavailable", e.Unavailable},
		{"", "closed", e.Closed},
		{"", "canceled", e.Context},
		{"", "budget_exhausted", e.Exhausted},
		{"", "other", e.Other},
	}
}

// addStats adds the numbers of b to those of a.
func addStats(a, b *guard.Stats) {
	add(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
	a.Budget, a.FetchTimeout = b.Budget, b.FetchTimeout // not a count
}

func add(a, b reflect.Value) {
	for i := range a.NumField() {
		switch x, y := a.Field(i), b.Field(i); x.Kind() {
		case reflect.Uint64:
			x.SetUint(x.Uint() + y.Uint())
		case reflect.Int:
			x.SetInt(x.Int() + y.Int())
		case reflect.Bool:
			x.SetBool(x.Bool() || y.Bool())
		case reflect.Struct:
			add(x, y)
		}
	}
}
