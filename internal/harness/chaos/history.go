package chaos

import (
	"strings"
	"time"
)

// A Stamp is an instant of the wall clock, in nanoseconds since 1970. Zero is
// none.
type Stamp int64

func now() Stamp { return Stamp(time.Now().UnixNano()) }

// Sub returns how much later s is than t.
func (s Stamp) Sub(t Stamp) time.Duration { return time.Duration(s - t) }

// Add returns the instant d later.
func (s Stamp) Add(d time.Duration) Stamp { return s + Stamp(d) }

// An Origin is where a value comes from. The value itself says so.
type Origin struct {
	Key    string `json:"k"`
	Proc   int    `json:"p"`           // the process that fetched or set it
	Seq    uint64 `json:"q"`           // the fetch or the change, in that process
	At     Stamp  `json:"at"`          // when the fetch started
	Caller uint64 `json:"c,omitempty"` // that fetched
	Set    bool   `json:"s,omitempty"` // by Set, not by a fetch
}

// A Get is one call by one caller.
type Get struct {
	Proc     int     `json:"-"`
	Key      string  `json:"k"`
	Caller   uint64  `json:"c"`
	Start    Stamp   `json:"b"`
	End      Stamp   `json:"e,omitempty"` // zero: it was still out at Seen
	Seen     Stamp   `json:"n,omitempty"`
	Deadline Stamp   `json:"d"`
	Origin   *Origin `json:"o,omitempty"` // of the value; nil with an error
	Damage   string  `json:"x,omitempty"` // the value is none that was ever made
	Err      string  `json:"r,omitempty"` // kind of the error
	Source   string  `json:"s,omitempty"` // as of guard.Source
	Many     bool    `json:"m,omitempty"` // one of the keys of a LoadMany
}

// A Fetch is one run of a fetch function.
type Fetch struct {
	Proc      int    `json:"-"`
	Key       string `json:"k"`
	Seq       uint64 `json:"q"`
	Start     Stamp  `json:"b"`
	End       Stamp  `json:"e,omitempty"` // zero: not told
	Token     string `json:"t"`           // of its lease; without one, a random one
	Leased    bool   `json:"l,omitempty"`
	TakenOver bool   `json:"o,omitempty"`
	Err       string `json:"r,omitempty"`
}

// A Change is a call of Delete, Set, Expire or DeleteTag.
type Change struct {
	Proc  int    `json:"-"`
	Op    string `json:"o"`
	Key   string `json:"k"` // or tag
	Seq   uint64 `json:"q"`
	Start Stamp  `json:"b"`
	End   Stamp  `json:"e,omitempty"` // zero: not told
	Err   string `json:"r,omitempty"`
}

// acknowledged reports whether the change is known to have been carried out.
func (c *Change) acknowledged() bool { return c.End != 0 && c.Err == "" }

// errQueued is the kind of error of a change that the process will carry out.
const errQueued = "queued"

// known reports whether the process knows that the key's last value is void: not if the change
// failed for good, as that value may well be read again.
func (c *Change) known() bool { return c.acknowledged() || c.Err == errQueued }

// An Event is one that a guard or a store reported.
type Event struct {
	Proc  int    `json:"-"`
	Kind  string `json:"i"`
	At    Stamp  `json:"a"`
	Key   string `json:"k,omitempty"`
	Token string `json:"t,omitempty"`
	Node  string `json:"n,omitempty"` // of a store's events
	Err   string `json:"r,omitempty"`
}

// A Fault is something that the nemesis did.
type Fault struct {
	Name     string
	Detail   string
	Start    Stamp
	Repaired Stamp // the fault is over
	Until    Stamp // and the servers have recovered
}

// A Pause is a time in which a process did not run, or hardly.
type Pause struct {
	Proc     int
	From, To Stamp
	Frozen   bool // by the nemesis
}

// A Life is the end of a process and its resources when it was idle, before and
// after.
type Life struct {
	Proc          int
	End           Stamp // zero: it saw the end of the run
	Before, After *Idle
}

// Idle lists the resources of an idle process.
type Idle struct {
	Goroutines int    `json:"goroutines"`
	Heap       uint64 `json:"heap"`
	Stacks     string `json:"stacks,omitempty"` // if there are too many
}

// A History is all that is known of a run.
type History struct {
	Gets    []Get
	Fetches []Fetch
	Changes []Change
	Events  []Event
	Faults  []Fault // one after the other
	Pauses  []Pause
	Lives   []Life

	// Failovers are when a server was found to be a master that had not been one,
	// or the other way round; by the nemesis, or because the machine was too busy
	// for the master to answer in time.
	Failovers []Stamp
	CalmUntil Stamp // no fault before this
	Terms     Terms
}

// Terms are the parts of the policies in force that the checker uses.
type Terms struct {
	Patience time.Duration // how much later than its deadline a caller may return
	Reach    time.Duration // how long before a fetch starts its lease may have been granted
	Late     time.Duration // how long after it failed a change may still be carried out
	Lease    time.Duration
	Fetch    time.Duration // when the lease of a fetch that goes on is given back
	HardTTL  time.Duration // the longest of the kinds that are changed, and a fetch
}

// kindOf is the kind of a key: the text before the first dash.
func kindOf(key string) string {
	kind, _, _ := strings.Cut(key, "-")
	return kind
}
