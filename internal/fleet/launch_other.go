//go:build !unix

package fleet

import (
	"errors"
	"os"
	"os/exec"
)

func dieWithParent(*exec.Cmd) {}

func freeze(*os.Process) error { return errors.ErrUnsupported }

func thaw(*os.Process) error { return errors.ErrUnsupported }
