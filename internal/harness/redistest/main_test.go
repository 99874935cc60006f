package redistest_test

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // refused connections are expected
	os.Exit(m.Run())
}
