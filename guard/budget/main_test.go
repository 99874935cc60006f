package budget_test

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func TestMain(m *testing.M) {
	childMain()
	redis.SetLogger(quiet{})
	_ = flag.Set("test.parallel", "6") // such tests wait for servers; the command line has the last word
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/stampedeguard/stampede/internal/harness/redistest.init.func1.1"))
}

// quiet keeps the client's own log out of the tests, which cut its connections.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// bounds asks for everything in full, which needs a quiet machine:
//
//	STAMPEDE_BOUNDS=1 go test ./guard/budget -v -timeout 10m
var bounds = os.Getenv("STAMPEDE_BOUNDS") == "1"

// patient is for real servers on a loaded machine. Other tests cover timeouts.
var patient = budget.Options{Namespace: "test", RedisTimeout: 5 * time.Second}

func open(t testing.TB, rdb redis.UniversalClient, l budget.Limit, o ...budget.Options) *budget.Budget {
	t.Helper()
	opts := budget.Options{}
	if len(o) > 0 {
		opts = o[0]
	}
	if opts.Namespace == "" {
		opts.Namespace = "test"
	}
	b, err := budget.New(rdb, "vendor", l, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("closing the budget: %v", err)
		}
	})
	return b
}

func server(t testing.TB) *redistest.Server {
	return redistest.RunStandalone(t, redistest.StandaloneConfig{})
}

// spend takes one unit at once, and reports whether it was granted.
func spend(b *budget.Budget, p guard.Priority) bool {
	_, err := b.Spend(context.Background(), guard.Spending{Cost: 1, Priority: p})
	return err == nil
}
