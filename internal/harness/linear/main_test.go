package linear_test

import (
	"os"
	"testing"

	"github.com/stampedeguard/stampede/internal/harness/linear"
)

func TestMain(m *testing.M) {
	linear.Main()
	os.Exit(m.Run())
}

// STAMPEDE_BOUNDS=1 asks for everything in full, which takes some ten minutes:
//
//	STAMPEDE_BOUNDS=1 go test -race ./internal/harness/linear -v -timeout 30m
var full = os.Getenv("STAMPEDE_BOUNDS") == "1"
