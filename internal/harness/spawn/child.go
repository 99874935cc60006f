package spawn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// childEnv holds the name of the child that a process is to be.
const childEnv = "STAMPEDE_CHILD"

// Main runs a child and ends the process, if this process was started as the
// child of this name. An error that run returns is told on standard error, but
// for the io.EOF of a parent that is gone; the exit status is 1 then, or else 0.
func Main(name string, run func(*Parent) error) {
	if os.Getenv(childEnv) != name {
		return
	}
	err := run(&Parent{in: json.NewDecoder(os.Stdin), teller: teller{out: os.Stdout}})
	if err == nil {
		os.Exit(0)
	}
	if !errors.Is(err, io.EOF) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	os.Exit(1)
}

// A Parent is the parent as its child sees it.
type Parent struct {
	in *json.Decoder
	teller
}

// Hear takes in the next message of the parent; io.EOF when it is gone. One
// goroutine calls it.
func (p *Parent) Hear(v any) error { return p.in.Decode(v) }
