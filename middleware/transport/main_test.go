package transport_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/stampedeguard/stampede/internal/harness/redistest.init.func1.1"))
}
