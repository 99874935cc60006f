package fleet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// freeze returns once the process is stopped, not merely signalled.
func freeze(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		if err != nil {
			return err
		}
		// The state follows the command's name in parentheses: proc_pid_stat(5).
		_, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')'):], []byte(" "))
		switch state[0] {
		case 'T':
			return nil
		case 'Z', 'X':
			return os.ErrProcessDone
		}
		time.Sleep(50 * time.Microsecond)
	}
}

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
