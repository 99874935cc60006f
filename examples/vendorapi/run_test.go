package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var binary string

func TestMain(m *testing.M) { os.Exit(build(m)) }

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "vendorapi-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "vendorapi")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

func TestBudgetSparesTheVendor(t *testing.T) {
	var errs bytes.Buffer
	cmd := exec.Command(binary, "-procs", "2", "-for", "4s", "-json")
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var report struct {
		Modes []map[string]any `json:"modes"`
	}
	in := json.NewDecoder(bytes.NewReader(out))
	if err := in.Decode(&report); err != nil || in.More() || len(report.Modes) != 3 {
		t.Fatalf("not one object with three modes: %v\n%s", err, out)
	}
	number := map[string]map[string]float64{}
	for i, mode := range []string{"none", "guard", "budget"} {
		m := report.Modes[i]
		if m["mode"] != mode || len(m) != 7 {
			t.Errorf("mode %d is %v", i, m)
		}
		number[mode] = map[string]float64{}
		for _, name := range []string{"calls", "rejected", "cost", "answers", "stale_answers", "limit"} {
			n, ok := m[name].(float64)
			if !ok || n < 0 {
				t.Errorf("%s of %s is %v", name, mode, m[name])
			}
			number[mode][name] = n
		}
	}
	none, with := number["none"], number["budget"]
	if none["rejected"] == 0 || with["answers"] == 0 {
		t.Errorf("without a guard %v calls were rejected; with a budget %v answers were given", none["rejected"], with["answers"])
	}
	// A stalled machine may bunch up calls that left evenly: that is no call too many.
	if with["calls"] > with["limit"] || with["rejected"] > with["calls"]/10 {
		t.Errorf("with a budget: %v", with)
	}
}

func TestWrongUseIsToldWithCode2(t *testing.T) {
	for _, args := range [][]string{{"-procs", "0"}, {"-for", "1ms"}, {"-limit", "0"}, {"-demand", "0"}, {"more"}} {
		cmd := exec.Command(binary, args...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(errs.String(), strings.TrimPrefix(args[0], "-")) {
			t.Errorf("%v: code %d, %s", args, code, errs.String())
		}
	}
}

func TestRedisThatDoesNotAnswerIsTold(t *testing.T) {
	cmd := exec.Command(binary, "-redis", "redis://127.0.0.1:1/0")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	_ = cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs.String(), "doesn't answer") {
		t.Errorf("code %d, %s", code, errs.String())
	}
}
