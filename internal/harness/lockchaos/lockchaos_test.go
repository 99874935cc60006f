package lockchaos_test

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/lockchaos"
)

func TestMain(m *testing.M) {
	lockchaos.ChildMain()
	os.Exit(m.Run())
}

func TestLocksOutliveFaults(t *testing.T) {
	for _, kind := range []string{lockchaos.Standalone, lockchaos.Quorum} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			res, err := lockchaos.Run(t.Context(), lockchaos.Options{For: 10 * time.Second, Kind: kind, Seed: 1, Procs: 3, Progress: io.Discard})
			if err != nil {
				t.Fatal(err)
			}
			_ = res.WriteText(t.Output())
			if !res.OK() {
				t.Fail()
			}
		})
	}
}
