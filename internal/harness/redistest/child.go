package redistest

import (
	"os"
	"os/exec"
)

// StartChild starts cmd as the servers of this package are started: it cannot
// outlive this process. It sets cmd.SysProcAttr.
func StartChild(cmd *exec.Cmd) error { return startChild(cmd) }

// PauseProcess stops a child with SIGSTOP and returns once it is stopped.
func PauseProcess(p *os.Process) error { return pauseProcess(p) }

// ResumeProcess continues it.
func ResumeProcess(p *os.Process) error { return resumeProcess(p) }
