package guard_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

func TestInspectTellsOtherProcessesLeaseAndPause(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		if s, err := fleet[1].Inspect(w.Context(), "k"); err != nil || s != (guard.KeyState{}) {
			w.Fatalf("of an unknown key: %+v, error %v", s, err)
		}
		_, _ = fleet[0].Get(w.Context(), "k", func(context.Context) (string, error) {
			s, err := fleet[1].Inspect(w.Context(), "k")
			if err != nil || s.Holder.IsZero() || s.Lease <= 0 || s.Pause != 0 || s.Attempts != 1 || s.Quarantined {
				w.Errorf("during the fetch: %+v, error %v, want a lease and one attempt", s, err)
			}
			return "", guard.RetryAfter(errors.New("no"), time.Hour)
		})
		s, err := fleet[1].Inspect(w.Context(), "k")
		if err != nil || !s.Holder.IsZero() || s.Pause < 50*time.Minute || s.Attempts != 0 {
			w.Errorf("after the fetch: %+v, error %v, want a pause of an hour", s, err)
		}
	})
}
