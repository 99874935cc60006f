package redistest_test

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // refused connections are what these tests are about
	os.Exit(m.Run())
}
