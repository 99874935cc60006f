//go:build unix && !linux

package fleet

import (
	"os"
	"os/exec"
	"syscall"
)

// dieWithParent does nothing: a child ends with its standard input, but one
// that is frozen notices only when it is thawed.
func dieWithParent(*exec.Cmd) {}

func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
