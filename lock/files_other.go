//go:build !unix || solaris || aix

package lock

import (
	"errors"
	"os"
)

func tryFlock(*os.File) (bool, error) {
	return false, errors.New("lock: Files needs flock, which this system lacks")
}
