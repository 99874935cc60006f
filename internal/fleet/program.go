package fleet

import (
	"os"
	"os/exec"

	"github.com/stampedeguard/stampede/internal/redistest"
)

// Launch starts a program that is not one of a fleet's children in the same way:
// on Linux it does not outlive this process.
func Launch(cmd *exec.Cmd) error { return redistest.StartChild(cmd) }

// Freeze and Thaw are Process.Stop and Process.Cont for such a program.
func Freeze(p *os.Process) error { return redistest.PauseProcess(p) }

// Thaw is the opposite of Freeze.
func Thaw(p *os.Process) error { return redistest.ResumeProcess(p) }
