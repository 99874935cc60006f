//go:build unix && !linux

package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// dieWithParent does nothing: only Linux ties a child's life to its parent's.
// Elsewhere a server outlives a parent that dies without calling Stop.
func dieWithParent(*exec.Cmd) {}

func pauseProcess(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("redistest: pause server: %w", err)
	}
	return nil
}

func resumeProcess(p *os.Process) error {
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("redistest: resume server: %w", err)
	}
	return nil
}
