package main

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
)

func TestGuardSparesTheOriginDuringAnOutage(t *testing.T) {
	for _, args := range [][]string{{"-fault", "kill"}, {"-fault", "freeze"}, {"-fault", "kill", "-embedded"}} {
		t.Run(args[1]+" "+args[len(args)-1], func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			args = append(args, "-json", "-stores", "2", "-callers", "4", "-keys", "50", "-before", "1s", "-for", "2s", "-after", "1s", "-modes", "guard-no-reserve,guard")
			if err := run(t.Context(), args, &out, io.Discard); err != nil {
				t.Fatal(err)
			}
			var r struct {
				Modes []struct {
					Name   string
					During map[string]float64
				}
			}
			if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Modes) != 2 {
				t.Fatalf("%v: %s", err, &out)
			}
			without, with := r.Modes[0], r.Modes[1]
			if without.Name != "guard-no-reserve" || without.During["fetches"] < 50 {
				t.Errorf("without a reserve: %v", without)
			}
			if with.Name != "guard" || with.During["fetches"] > 2*50 || with.During["errors"] > 0 || with.During["calls_per_s"] == 0 {
				t.Errorf("with it: %v", with)
			}
		})
	}
}

func TestUnknownFlagsAreErrors(t *testing.T) {
	for _, args := range [][]string{{"-fault", "rain"}, {"-modes", "hope"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%v is no error", args)
		}
	}
}
