// Package measure lists the measurements of guards, stores, budgets and locks: the names,
// units and attributes of the metrics, how an event is recorded, and which numbers are read when
// metrics are collected. The adapters to OpenTelemetry and Prometheus only translate it.
package measure

import (
	"net"
	"strings"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// A Kind is the type of an [Instrument].
type Kind byte

const (
	Counter       Kind = iota + 1 // only grows
	UpDownCounter                 // a number of things now
	Gauge                         // a value now that does not add up over processes
	Histogram
)

// An Instrument is one metric. Its names are those of OpenTelemetry.
type Instrument struct {
	Name        string
	Kind        Kind
	Unit        string
	Description string
	Labels      []string
	Buckets     []float64 // of a Histogram
	Observed    bool      // it is read by [Registry.Collect], not recorded by [Record]
}

// Names of attributes.
const (
	guardName  = "stampede.guard.name"
	budgetName = "stampede.budget.name"
	priority   = "stampede.budget.priority"
	source     = "stampede.source"
	errorType  = "error.type"
	reason     = "stampede.reason"
	address    = "server.address"
	port       = "server.port"
	state      = "stampede.state"
)

// Buckets of durations: from the time of a round trip to the longest usual FetchTimeout.
var (
	seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	ages    = []float64{.1, 1, 10, 60, 300, 900, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600}
	sizes   = []float64{64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
)

// The instruments.
var (
	requests = &Instrument{
		Name: "stampede.requests", Kind: Counter, Unit: "{request}", Observed: true,
		Description: "Calls for a key, by the source of the value or the type of the error.",
		Labels:      []string{guardName, source, errorType},
	}
	fetchDuration = &Instrument{
		Name: "stampede.fetch.duration", Kind: Histogram, Unit: "s", Buckets: seconds,
		Description: "Duration of fetches.",
		Labels:      []string{guardName, "stampede.fetch.trigger", "stampede.fetch.outcome", errorType},
	}
	fetchActive = &Instrument{
		Name: "stampede.fetch.active", Kind: UpDownCounter, Unit: "{fetch}", Observed: true,
		Description: "Fetches under way.",
		Labels:      []string{guardName},
	}
	fetchTimeout = &Instrument{
		Name: "stampede.fetch.timeout", Kind: Gauge, Unit: "s", Observed: true,
		Description: "Bound of a fetch, of the guard's policy.",
		Labels:      []string{guardName},
	}
	waitDuration = &Instrument{
		Name: "stampede.wait.duration", Kind: Histogram, Unit: "s", Buckets: seconds,
		Description: "Time that calls waited for the fetch of another caller, here or in another process.",
		Labels:      []string{guardName, "stampede.wait.outcome"},
	}
	waitActive = &Instrument{
		Name: "stampede.wait.active", Kind: UpDownCounter, Unit: "{request}", Observed: true,
		Description: "Calls that wait for a fetch, their own or another's.",
		Labels:      []string{guardName},
	}
	leaseRequests = &Instrument{
		Name: "stampede.lease.requests", Kind: Counter, Unit: "{request}", Observed: true,
		Description: "Answers to requests for a lease.",
		Labels:      []string{guardName, "stampede.lease.answer"},
	}
	leaseLosses = &Instrument{
		Name: "stampede.lease.losses", Kind: Counter, Unit: "{lease}", Observed: true,
		Description: "Leases that were lost while they should have been held.",
		Labels:      []string{guardName},
	}
	fillRefusals = &Instrument{
		Name: "stampede.fill.refusals", Kind: Counter, Unit: "{entry}",
		Description: "Fetched entries that could not be stored.",
		Labels:      []string{guardName, reason},
	}
	entrySize = &Instrument{
		Name: "stampede.entry.size", Kind: Histogram, Unit: "By", Buckets: sizes,
		Description: "Size of the entries that were stored.",
		Labels:      []string{guardName},
	}
	staleAge = &Instrument{
		Name: "stampede.stale.age", Kind: Histogram, Unit: "s", Buckets: ages,
		Description: "Age of the values that were served stale.",
		Labels:      []string{guardName, reason},
	}
	invalidations = &Instrument{
		Name: "stampede.invalidations", Kind: Counter, Unit: "{change}",
		Description: "Changes of keys and tags by callers.",
		Labels:      []string{guardName, "stampede.operation", errorType},
	}
	nearEntries = &Instrument{
		Name: "stampede.near.entry.count", Kind: UpDownCounter, Unit: "{entry}", Observed: true,
		Description: "Values in the near cache.",
		Labels:      []string{guardName},
	}
	reserveEntries = &Instrument{
		Name: "stampede.reserve.entry.count", Kind: UpDownCounter, Unit: "{entry}", Observed: true,
		Description: "Values in the reserve for outages of the store.",
		Labels:      []string{guardName},
	}
	queuedInvalidations = &Instrument{
		Name: "stampede.invalidation.queue.count", Kind: UpDownCounter, Unit: "{change}", Observed: true,
		Description: "Invalidations that the store has not acknowledged.",
		Labels:      []string{guardName},
	}
	nearEvictions = &Instrument{
		Name: "stampede.near.evictions", Kind: Counter, Unit: "{entry}", Observed: true,
		Description: "Values evicted from the near cache by its bound.",
		Labels:      []string{guardName},
	}
	nearBypasses = &Instrument{
		Name: "stampede.near.bypasses", Kind: Counter, Unit: "{request}", Observed: true,
		Description: "Lookups that could not use the near cache, as invalidations may have been missed.",
		Labels:      []string{guardName},
	}
	breakerStatus = &Instrument{
		Name: "stampede.store.breaker.status", Kind: UpDownCounter, Unit: "{node}", Observed: true,
		Description: "1 for the state of the breaker of a Redis node, 0 for the others.",
		Labels:      []string{state, address, port},
	}
	subscriptionStatus = &Instrument{
		Name: "stampede.store.subscription.status", Kind: UpDownCounter, Unit: "{node}", Observed: true,
		Description: "1 for the state of the subscription on a Redis node, 0 for the others.",
		Labels:      []string{state, address, port},
	}
	lateness = &Instrument{
		Name: "stampede.process.lateness", Kind: Histogram, Unit: "s", Buckets: seconds,
		Description: "How late this process noticed the end of a timeout, when it was short of processor time.",
		Labels:      []string{address, port},
	}
	budgetWait = &Instrument{
		Name: "stampede.budget.wait.duration", Kind: Histogram, Unit: "s", Buckets: seconds,
		Description: "Time that fetches waited for their budget.",
		Labels:      []string{budgetName, guardName, priority},
	}
	budgetRefusals = &Instrument{
		Name: "stampede.budget.refusals", Kind: Counter, Unit: "{fetch}",
		Description: "Fetches that were not made, as the budget was exhausted.",
		Labels:      []string{budgetName, guardName, priority},
	}
	budgetPauses = &Instrument{
		Name: "stampede.budget.pauses", Kind: Counter, Unit: "{pause}",
		Description: "Pauses that an upstream asked for.",
		Labels:      []string{budgetName},
	}
	budgetRemaining = &Instrument{
		Name: "stampede.budget.remaining", Kind: Gauge, Unit: "{unit}", Observed: true,
		Description: "Units that could be spent at once, as last heard. The budget is shared: do not add it up.",
		Labels:      []string{budgetName},
	}
	budgetLimit = &Instrument{
		Name: "stampede.budget.limit", Kind: Gauge, Unit: "{unit}", Observed: true,
		Description: "Units that may be spent at once after a quiet time. The budget is shared: do not add it up.",
		Labels:      []string{budgetName},
	}
	lockWait = &Instrument{
		Name: "stampede.lock.wait.duration", Kind: Histogram, Unit: "s", Buckets: seconds,
		Description: "Time that callers waited for a lock.",
		Labels:      []string{"stampede.lock.outcome"},
	}
	lockHeld = &Instrument{
		Name: "stampede.lock.held.duration", Kind: Histogram, Unit: "s", Buckets: seconds,
		Description: "Time that locks were held, by this process.",
	}
	lockActive = &Instrument{
		Name: "stampede.lock.active", Kind: UpDownCounter, Unit: "{lock}", Observed: true,
		Description: "Locks that are held now, by this process.",
	}
	lockLosses = &Instrument{
		Name: "stampede.lock.losses", Kind: Counter, Unit: "{lock}",
		Description: "Locks that were lost while they should have been held.",
	}
	workAttempts = &Instrument{
		Name: "stampede.work.attempts", Kind: Counter, Unit: "{attempt}",
		Description: "Attempts of workers at jobs that have ended.",
		Labels:      []string{"stampede.work.outcome"},
	}
)

// Instruments are all of them.
var Instruments = []*Instrument{
	requests, fetchDuration, fetchActive, fetchTimeout, waitDuration, waitActive, leaseRequests, leaseLosses, fillRefusals, entrySize,
	staleAge, invalidations, nearEntries, reserveEntries, queuedInvalidations, nearEvictions, nearBypasses, breakerStatus, subscriptionStatus, lateness,
	budgetWait, budgetRefusals, budgetPauses, budgetRemaining, budgetLimit, lockWait, lockHeld,
	lockActive, lockLosses, workAttempts,
}

// A Recorder takes one measurement. labels are the values of the instrument's Labels, in
// their order; an empty value stands for an attribute that does not apply. labels are only
// lent.
type Recorder func(i *Instrument, value float64, labels ...string)

// Record records an event.
func Record(ev *cache.Event, record Recorder) {
	if ev.Guard == "" && recordLock(ev, record) {
		return
	}
	switch ev.Kind {
	case cache.FetchDone, cache.FetchFailed, cache.FetchNotFound, cache.FetchNotModified:
		class := ""
		if ev.Outcome == telemetry.OutcomeError {
			class = ErrorType(ev.Err)
		}
		record(fetchDuration, ev.Duration.Seconds(), ev.Guard, ev.Trigger, ev.Outcome, class)
	case cache.CallWaited:
		record(waitDuration, ev.Duration.Seconds(), ev.Guard, ev.Outcome)
	case cache.FillStored:
		record(entrySize, float64(ev.Size), ev.Guard)
	case cache.FillRefused:
		record(fillRefusals, 1, ev.Guard, ev.Reason)
	case cache.StaleServed:
		record(staleAge, ev.Duration.Seconds(), ev.Guard, ev.Reason)
	case cache.KeyChanged:
		record(invalidations, 1, ev.Guard, ev.Operation, ErrorType(ev.Err))
	case cache.ProcessLate:
		host, number := splitAddress(ev.Node)
		record(lateness, ev.Duration.Seconds(), host, number)
	case cache.BudgetWaited:
		record(budgetWait, ev.Duration.Seconds(), ev.Budget, ev.Guard, ev.Priority)
	case cache.BudgetExhausted:
		record(budgetRefusals, 1, ev.Budget, ev.Guard, ev.Priority)
	case cache.BudgetPaused:
		record(budgetPauses, 1, ev.Guard)
	}
}

// recordLock records an event of a lock or a worker, which names no guard. It reports false
// for any other event.
func recordLock(ev *cache.Event, record Recorder) bool {
	switch ev.Kind {
	case cache.WaitEnded:
		outcome := "granted"
		if ev.Err != nil {
			outcome = ErrorType(ev.Err)
		}
		record(lockWait, ev.Duration.Seconds(), outcome)
	case cache.LeaseReleased:
		record(lockHeld, ev.Duration.Seconds())
	case cache.LeaseLost:
		record(lockLosses, 1)
	case cache.JobDone:
		record(workAttempts, 1, "done")
	case cache.JobFailed:
		record(workAttempts, 1, "failed")
	case cache.JobGaveUp:
		record(workAttempts, 1, "gave_up")
	default:
		return false
	}
	return true
}

func splitAddress(node string) (host, number string) {
	host, number, err := net.SplitHostPort(node)
	if err != nil {
		return strings.ToValidUTF8(node, "?"), ""
	}
	return host, number
}
