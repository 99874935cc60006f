package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// ErrNoServer is wrapped by the error of every function that starts real
// servers when redis-server is not on the PATH. Tests must fail on it: a suite
// that skips its real servers proves nothing.
var ErrNoServer = errors.New("redistest: redis-server not found")

// serverVariable names the environment variable with the server binary under test: another
// version of Redis, or Valkey. Default redis-server.
const serverVariable = "STAMPEDE_REDIS_SERVER"

const howToInstall = "install it with `apt-get install redis-server` (Debian, Ubuntu), " +
	"`brew install redis` (macOS), or from https://redis.io/docs/latest/operate/oss_and_stack/install/, " +
	"or name a binary in " + serverVariable

func serverPath() (string, error) {
	path, err := exec.LookPath(cmp.Or(os.Getenv(serverVariable), "redis-server"))
	if err != nil {
		return "", fmt.Errorf("%w: %w; %s", ErrNoServer, err, howToInstall)
	}
	return path, nil
}
