package cache_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// quiet keeps the client's own log out of the tests, many of which cut its
// connections on purpose.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// launcher is the goroutine that starts servers and outlives them: the thread
// that starts a process must live as long as it.
const launcher = "github.com/stampedeguard/stampede/internal/harness/redistest.init.func1.1"

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(launcher))
}
