package main_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestSecondCallFindsTheFirstValue(t *testing.T) {
	cmd := exec.Command("go", "run", ".")
	cmd.Env = append(os.Environ(), "REDIS_URL=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "from fetched") || !strings.Contains(lines[1], "from store") {
		t.Errorf("it printed\n%s", out)
	}
}
