//go:build !unix

package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

func dieWithParent(*exec.Cmd) {}

func pauseProcess(*os.Process) error {
	return fmt.Errorf("redistest: pause server: %w", errors.ErrUnsupported)
}

func resumeProcess(*os.Process) error {
	return fmt.Errorf("redistest: resume server: %w", errors.ErrUnsupported)
}
