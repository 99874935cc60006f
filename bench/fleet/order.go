// Package fleet runs systems in real child processes, which are this binary
// started again, and gives them orders: one JSON object a line, orders in, events
// out.
package fleet

import (
	"time"

	"github.com/stampedeguard/stampede/bench/peer"
)

// An Order is one thing for a child to do. It answers with one done or error
// event; orders are carried out one after the other.
type Order struct {
	Do Verb

	System  string       `json:",omitzero"` // Open
	Options peer.Options `json:",omitzero"` // Open

	Key      string        `json:",omitzero"`
	Keys     int           `json:",omitzero"` // spread over so many keys, Key being a prefix
	Zipf     bool          `json:",omitzero"` // draw them by Zipf's law instead of evenly
	Read     bool          `json:",omitzero"` // Preset: and read each once, as some keep only values that they have read
	Callers  int           `json:",omitzero"` // at once
	Rate     int           `json:",omitzero"` // Load: calls a second, whether answered or not
	For      time.Duration `json:",omitzero"` // Load, Loop: how long
	At       time.Time     `json:",omitzero"` // when to begin; the past is at once
	Deadline time.Duration `json:",omitzero"` // of each call; 0 is none
	Fetch    Origin        `json:",omitzero"`
	Announce bool          `json:",omitzero"` // an event when a fetch begins

	// Cancel: how long after its fetch began the first caller and a follower
	// give up.
	FirstLeaves, FollowerLeaves time.Duration `json:",omitzero"`
}

// A Verb is the kind of an order.
type Verb string

// The orders of a child.
const (
	Open   Verb = "open"   // the system, for all further orders
	Burst  Verb = "burst"  // Callers call Get once each, all at once
	Load   Verb = "load"   // Rate calls a second, spread evenly
	Loop   Verb = "loop"   // Callers call Get again and again, for throughput
	Preset Verb = "preset" // store all Keys
	Cancel Verb = "cancel" // a Burst in which callers leave
	Delete Verb = "delete" // Key
	Usage  Verb = "usage"  // of CPU
)

// An Origin is the upstream of a fetch.
type Origin struct {
	Takes time.Duration `json:",omitzero"`
	Fails bool          `json:",omitzero"`
	// Value begins the value, which is filled up to Size bytes.
	Value string `json:",omitzero"`
	Size  int    `json:",omitzero"`
}

// An Event is a child's answer or news.
type Event struct {
	Kind  string    // "fetch", "done", "error"
	Text  string    `json:",omitzero"` // of an error
	At    time.Time `json:",omitzero"` // of a fetch's beginning
	Calls []Call    `json:",omitzero"`

	Fetches []Span        `json:",omitzero"`
	CPU     time.Duration `json:",omitzero"` // Usage: used since the child's start

	Loop LoopResult `json:",omitzero"`

	// Cancel: how long after the end of their contexts these two returned.
	FirstLeft, FollowerLeft time.Duration `json:",omitzero"`
}

// A Call is one call of Get.
type Call struct {
	From  time.Time
	Took  time.Duration
	Err   string `json:",omitzero"`
	Value string `json:",omitzero"` // how it begins
}

// Ended says when the call returned.
func (c Call) Ended() time.Time { return c.From.Add(c.Took) }

// A Span is a fetch that ran.
type Span struct{ From, To time.Time }

// A LoopResult sums up a Loop.
type LoopResult struct {
	Ops, Errors int           `json:",omitzero"`
	Fetches     int           `json:",omitzero"` // those of the warm-up included
	Err         string        `json:",omitzero"` // one of them
	Took        time.Duration `json:",omitzero"`
	P50, P99    time.Duration `json:",omitzero"` // of every eighth call
	CPU         time.Duration `json:",omitzero"`
	Allocs      uint64        `json:",omitzero"`
}
