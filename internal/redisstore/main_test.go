package redisstore_test

import (
	"context"
	"flag"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// quiet keeps the client's own log out of the tests, many of which cut its connections.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// launcher is the goroutine that starts servers. It outlives them, as the thread that
// starts a process must live as long as the process.
const launcher = "github.com/stampedeguard/stampede/internal/harness/redistest.init.func1.1"

func TestMain(m *testing.M) {
	// Parallel tests wait for servers and for the ends of leases: they need little of a
	// processor. The command line has the last word.
	_ = flag.Set("test.parallel", "8")
	redis.SetLogger(quiet{})
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(launcher))
}
