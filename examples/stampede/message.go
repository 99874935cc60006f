package main

import "time"

// A message is a line of JSON between the parent and a child. The parent sends
// job and go; the child sends ready, then progress, then result, or failed at
// any time. The child ends when its standard input does.
type message struct {
	Type string `json:"type"`

	Job *job `json:"job,omitempty"`

	// go: the wall-clock instant, in nanoseconds. Parent and children run on one
	// machine, so their clocks agree.
	At int64 `json:"at,omitempty"`

	Answered int     `json:"answered,omitempty"` // progress
	Result   *result `json:"result,omitempty"`
	Error    string  `json:"error,omitempty"` // failed
}

const (
	msgJob      = "job"
	msgReady    = "ready"
	msgGo       = "go"
	msgProgress = "progress"
	msgResult   = "result"
	msgFailed   = "failed"
)

// A job is the work of a child.
type job struct {
	Proc      int           `json:"proc"`
	Mode      string        `json:"mode"`
	Callers   int           `json:"callers"`
	Redis     string        `json:"redis"`
	Origin    string        `json:"origin"`
	Namespace string        `json:"namespace"` // new for each scene, so the key is cold
	Timeout   time.Duration `json:"timeout"`   // of the callers
}

// A result tells the answers of a child's callers.
type result struct {
	Answers       []answer `json:"answers"`
	RedisCommands int64    `json:"redis_commands"`
	FirstError    string   `json:"first_error"`
	Notes         []string `json:"notes"` // events that make the figures doubtful
}

// An answer is that of one caller.
type answer struct {
	After  time.Duration `json:"after"` // since the common start
	Fetch  int           `json:"fetch"` // which fetch served it; 0 if none did
	Failed bool          `json:"failed"`
}
