//go:build unix && !solaris && !aix

package lock

import (
	"errors"
	"os"
	"syscall"
)

// tryFlock locks an open file for this process. It answers false if another process has it.
// The lock ends when the file is closed or the process dies.
func tryFlock(f *os.File) (bool, error) {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, err
		}
	}
}
