package redistest_test

import (
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // refused connections are expected
	// The tests wait for servers. The command line has the last word.
	_ = flag.Set("test.parallel", "6")
	os.Exit(m.Run())
}
