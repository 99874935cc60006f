package redistest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// dieWithParent asks the kernel to kill the child when its parent thread ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// pauseProcess returns once the process is stopped, not merely signalled:
// a server still running for some microseconds could answer a request that
// the test sends after Pause.
func pauseProcess(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("redistest: pause server: %w", err)
	}
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		if err != nil {
			return fmt.Errorf("redistest: pause server: %w", err)
		}
		// The state follows the command name, which is in parentheses and may
		// hold any character (proc_pid_stat(5)).
		_, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')'):], []byte(" "))
		switch state[0] {
		case 'T':
			return nil
		case 'Z', 'X':
			return errNotRunning
		}
		time.Sleep(50 * time.Microsecond)
	}
}

func resumeProcess(p *os.Process) error {
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("redistest: resume server: %w", err)
	}
	return nil
}
