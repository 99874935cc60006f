package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// Config names the parts that the children of a fleet open: a client, a store and a guard.
type Config struct {
	Redis  Redis
	Store  cache.Options // without an Observer
	Guard  string        // the guard's name; default "fleet"
	Policy guard.Policy  // without Codec, Observer and Errors
	// Errors are the names of the sentinels that Policy.Errors has in the
	// children: each stands for Sentinel(name).
	Errors []string
}

// Redis says where Redis is.
type Redis struct {
	Addrs   []string // a server, some nodes of a cluster, or the sentinels
	Cluster bool
	Master  string // its name, where Addrs are sentinels
}

// A Sentinel is an error that is equal in all processes.
type Sentinel string

func (s Sentinel) Error() string { return string(s) }

// A Get is a call of the guard by many callers of one process.
type Get struct {
	Keys    []string      // the callers take turns with them
	Callers int           // default 1
	At      time.Time     // when they call; zero: now
	Spread  time.Duration // the last calls so much later than the first
	Timeout time.Duration // of each caller's context; 0: none
	Fetch   Fetch
}

// A Fetch sets the outcome of a caller's fetch, once Duration has passed or, but
// for Deaf, its context has ended.
type Fetch struct {
	Duration   time.Duration
	Value      string        // default the time the fetch began, see Outcome.Fetched
	Size       int           // pads the value to so many bytes
	Fail       string        // fails with the Sentinel of this name
	RetryAfter time.Duration // with Fail: the key is not fetched for so long
	Panic      string        // panics
	Exit       int           // ends the process with this code
	Deaf       bool          // does not heed its context
	Hang       bool          // never returns, and does not heed its context either
}

// An Outcome is the same result of some callers of one Get.
type Outcome struct {
	N      int // callers
	Key    string
	Value  string // its first 64 bytes
	Size   int    // of the value, in bytes
	Source string // as of guard.Source
	Err    *Failure

	FirstCall, LastCall     time.Time
	FirstReturn, LastReturn time.Time
	// Overrun is how long after the end of its own context the last of the
	// callers returned for whom that came first.
	Overrun time.Duration
}

// Fetched returns when the fetch began that brought the value, if it was one
// without a Value of its own.
func (o *Outcome) Fetched() time.Time {
	t, _ := time.Parse(time.RFC3339Nano, o.Value)
	return t
}

// A Failure is an error in a child. errors.Is finds a Sentinel, the sentinels
// of package guard, and context.Canceled and DeadlineExceeded in it.
type Failure struct {
	Text   string
	Is     []string // names
	Remote bool     // a guard.RemoteError
}

func (f *Failure) Error() string { return f.Text }

// Unwrap returns the sentinels: none of a nil failure, which an Outcome has that is
// none.
func (f *Failure) Unwrap() []error {
	if f == nil {
		return nil
	}
	var all []error
	for _, name := range f.Is {
		if err := known[name]; err != nil {
			all = append(all, err)
		} else {
			all = append(all, Sentinel(name))
		}
	}
	return all
}

var known = map[string]error{
	"guard.ErrNotFound": guard.ErrNotFound, "guard.ErrMiss": guard.ErrMiss,
	"guard.ErrUnavailable": guard.ErrUnavailable, "guard.ErrQuarantined": guard.ErrQuarantined,
	"guard.ErrWaitTimeout": guard.ErrWaitTimeout, "guard.ErrFetchTimeout": guard.ErrFetchTimeout,
	"guard.ErrTooLarge": guard.ErrTooLarge, "guard.ErrClosed": guard.ErrClosed,
	"guard.ErrGoexit":  guard.ErrGoexit,
	"context.Canceled": context.Canceled, "context.DeadlineExceeded": context.DeadlineExceeded,
}

// failureOf is err as it travels.
func failureOf(err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Text: err.Error()}
	for name, sentinel := range known {
		if errors.Is(err, sentinel) {
			f.Is = append(f.Is, name)
		}
	}
	if s, ok := errors.AsType[Sentinel](err); ok {
		f.Is = append(f.Is, string(s))
	}
	_, f.Remote = errors.AsType[*guard.RemoteError](err)
	return f
}

// An Event is something that happened in a child, told at once.
type Event struct {
	Kind    cache.EventKind // FetchBegan, FetchEnded, or one of those in forwarded
	At      time.Time
	PID     int
	Key     string
	Token   string // of the lease, in hexadecimal; a random one without a lease
	Attempt int
	Err     string
}

// The reports of a child's fetches. The guard's own events of a fetch are not
// forwarded: these are nearer to it.
const (
	FetchBegan cache.EventKind = "fetch_began"
	FetchEnded cache.EventKind = "fetch_ended" // not told by one that exits or hangs
)

// forwarded are the guard's and the store's events that children pass on.
var forwarded = map[cache.EventKind]bool{
	cache.LeaseTakenOver: true, cache.LeaseLost: true, cache.LeaseReleased: true,
	cache.FillStored: true, cache.FillRefused: true, cache.FillTooLarge: true,
	cache.WaitBegan: true, cache.KeyQuarantined: true, cache.Unguarded: true,
	cache.SubscriptionUp: true, cache.SubscriptionLost: true,
	cache.BreakerOpened: true, cache.BreakerClosed: true, cache.ProcessLate: true,
}

// A Span is when a call was made in the child and when it returned.
type Span struct{ Called, Returned time.Time }

// Peeked is the result of Peek.
type Peeked struct {
	Value    string // its first 64 bytes
	Size     int
	Stale    bool
	Age, TTL time.Duration
}

// Stats are figures of a child.
type Stats struct {
	// Commands has how often each Redis command was written to any of the
	// child's connections, by lower-case name. It is counted on the wire, so that
	// it holds the commands that go-redis sends past its hooks: SUBSCRIBE and its relatives,
	// the subscription's PINGs, retries and redirections.
	Commands   map[string]int
	Goroutines int
	Guard      guard.Stats
}

// handshakes follow from the client's pool, not from the code under test.
var handshakes = map[string]bool{"hello": true, "auth": true, "select": true, "client": true, "readonly": true}

// Total returns the number of commands, without those that set up a connection.
func (s Stats) Total() int {
	total := 0
	for name, n := range s.Commands {
		if !handshakes[name] {
			total += n
		}
	}
	return total
}

// Since returns the commands sent after the earlier stats of the same child.
func (s Stats) Since(earlier Stats) Stats {
	sent := Stats{Commands: map[string]int{}, Goroutines: s.Goroutines, Guard: s.Guard}
	for name, n := range s.Commands {
		if n -= earlier.Commands[name]; n > 0 {
			sent.Commands[name] = n
		}
	}
	return sent
}

// Of request's fields those count that its Op uses. A child answers each with
// a reply of the same ID, not in order.
type request struct {
	ID    int64
	Op    string  // open, get, load, set, delete, expire, reset, peek, stats, close
	Open  *Config `json:",omitempty"`
	Get   *Get    `json:",omitempty"`
	Load  *Load   `json:",omitempty"`
	Key   string  `json:",omitempty"`
	Value string  `json:",omitempty"`
}

type reply struct {
	ID       int64
	Err      *Failure  `json:",omitempty"`
	Span     Span      `json:",omitzero"`
	Outcomes []Outcome `json:",omitempty"`
	Loaded   *Loaded   `json:",omitempty"`
	Peeked   Peeked    `json:",omitzero"`
	Stats    Stats     `json:",omitzero"`
}

// A line is one line that a child writes.
type line struct {
	Reply *reply `json:",omitempty"`
	Event *Event `json:",omitempty"`
}

// excerpt bounds a value that is only to be recognised.
func excerpt(value string) string { return value[:min(len(value), 64)] }
