package redistest

import "context"

// TB is the part of testing.TB that the Run functions need. It is declared
// here, rather than imported, so that programs which start servers with this
// package do not carry package testing.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// RunStandalone is [StartStandalone] for a test: it fails the test if the
// server does not start, also when redis-server is not installed, and stops
// the server when the test ends.
func RunStandalone(tb TB, cfg StandaloneConfig) *Server {
	tb.Helper()
	s, err := StartStandalone(tb.Context(), cfg)
	return running(tb, s, err)
}

// RunCluster is [StartCluster] for a test.
func RunCluster(tb TB, cfg ClusterConfig) *Cluster {
	tb.Helper()
	c, err := StartCluster(tb.Context(), cfg)
	return running(tb, c, err)
}

// RunSentinel is [StartSentinel] for a test.
func RunSentinel(tb TB, cfg SentinelConfig) *Sentinel {
	tb.Helper()
	s, err := StartSentinel(tb.Context(), cfg)
	return running(tb, s, err)
}

// RunEmbedded is [StartEmbedded] for a test.
func RunEmbedded(tb TB) *Embedded {
	tb.Helper()
	e, err := StartEmbedded()
	return running(tb, e, err)
}

// RunEmbeddedInMemory is [StartEmbeddedInMemory] for a test. Inside a
// testing/synctest bubble, call it with the bubble's own *testing.T: its
// cleanups run before the bubble ends.
func RunEmbeddedInMemory(tb TB) *Embedded {
	tb.Helper()
	e, err := StartEmbeddedInMemory()
	return running(tb, e, err)
}

// RunProxy is [StartProxy] for a test.
func RunProxy(tb TB, target string) *Proxy {
	tb.Helper()
	p, err := StartProxy(target)
	return running(tb, p, err)
}

type stopper interface{ Stop() error }

func running[S stopper](tb TB, s S, err error) S {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(func() {
		if err := s.Stop(); err != nil {
			tb.Errorf("%v", err)
		}
	})
	return s
}
