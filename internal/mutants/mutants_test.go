package mutants_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stampedeguard/stampede/internal/mutants"
)

const root = "../.."

func TestListFitsTheSource(t *testing.T) {
	t.Parallel()
	if err := mutants.Validate(mutants.All(), root); err != nil {
		t.Error(err)
	}
}

func TestPageListsTheMutants(t *testing.T) {
	t.Parallel()
	var want strings.Builder
	if err := mutants.WritePage(&want, mutants.All()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "bench", "mutants.md"))
	if err != nil || string(got) != want.String() {
		t.Errorf("bench/mutants.md is old, %v: go run ./internal/cmd/mutants -page > bench/mutants.md", err)
	}
}

// tiny is a module with a test for one of its two functions.
func tiny(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"go.mod":             "module tiny\n\ngo 1.26\n",
		"sums/sums.go":       "package sums\n\nimport _ \"embed\"\n\n//go:embed word.lua\nvar Word string\n\nfunc Add(a, b int) int { return a + b }\n\nfunc Sub(a, b int) int { return a - b }\n",
		"sums/word.lua":      "return 1\n",
		"sums/sums_test.go":  "package sums\n\nimport \"testing\"\n\nfunc TestAdd(t *testing.T) {\n\tif Add(1, 2) != 3 {\n\t\tt.Error(\"one and two\")\n\t}\n}\n\nfunc TestWord(t *testing.T) {\n\tif Word != \"return 1\\n\" {\n\t\tt.Error(Word)\n\t}\n}\n",
		"sums/other_test.go": "package sums\n\n// a + b\n",
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func one(name, old, replacement, test string) mutants.Mutant {
	return mutants.Mutant{
		Name: name, Patches: []mutants.Patch{{In: "sums", Old: old, New: replacement}}, Check: mutants.Test("sums", test),
	}
}

func TestRunTellsWhichMutantsAreFound(t *testing.T) {
	t.Parallel()
	dir := tiny(t)
	equivalent := one("equivalent", "a + b", "b + a", "TestAdd")
	equivalent.Equivalent = "addition commutes"
	wrong := one("said to be equivalent", "a + b", "a", "TestAdd")
	wrong.Equivalent = "it is not"
	all := []mutants.Mutant{
		one("found", "a + b", "a * b", "TestAdd"),
		one("found in Lua", "return 1", "return 2", "TestWord"),
		one("panics", "return a + b", "panic(1)", "TestAdd"),
		one("not found", "a - b", "a + b", "TestAdd"),
		one("of text that is not there", "a / b", "a", "TestAdd"),
		one("of text that occurs twice", "return a", "return b", "TestAdd"),
		one("of no test", "a + b", "a", "TestNone"),
		one("of nonsense", "a + b", "a +", "TestAdd"),
		equivalent, wrong,
	}
	want := []mutants.Verdict{
		mutants.Killed, mutants.Killed, mutants.Killed, mutants.Survived, mutants.Broken, mutants.Broken,
		mutants.Broken, mutants.Broken, mutants.Equivalent, mutants.Broken,
	}
	results := mutants.Run(t.Context(), all, mutants.Options{Root: dir})
	for i, r := range results {
		if r.Verdict != want[i] || r.Name != all[i].Name {
			t.Errorf("%q: %s, want %s: %s", r.Name, r.Verdict, want[i], r.Detail)
		}
		if r.Verdict == mutants.Broken && !strings.Contains(r.Detail, r.Name) {
			t.Errorf("%q is not named by %q", r.Name, r.Detail)
		}
	}
	if d := results[0].Detail; !strings.HasSuffix(d, "one and two") {
		t.Errorf("found by %q", d)
	}
	b, err := os.ReadFile(filepath.Join(dir, "sums", "sums.go"))
	if err != nil || !strings.Contains(string(b), "a + b") {
		t.Errorf("the source was changed: %s, %v", b, err)
	}
	var table, list strings.Builder
	if err := mutants.WriteTable(&table, results); err != nil || !strings.Contains(table.String(), "10 mutants: 3 killed, 1 equivalent, 1 survived, 5 broken") {
		t.Errorf("%v\n%s", err, table.String())
	}
	var read []mutants.Result
	if err := mutants.WriteJSON(&list, results); err != nil || json.Unmarshal([]byte(list.String()), &read) != nil || len(read) != len(results) {
		t.Errorf("%v\n%s", err, list.String())
	}
}

func TestBaselineFailsWhereACheckFailsWithoutMutants(t *testing.T) {
	t.Parallel()
	dir := tiny(t)
	m := one("found", "a + b", "a * b", "TestAdd")
	if failed := mutants.Baseline(t.Context(), []mutants.Mutant{m}, mutants.Options{Root: dir}); len(failed) != 0 {
		t.Errorf("%+v", failed)
	}
	source := filepath.Join(dir, "sums", "sums.go")
	b, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(source, []byte(strings.Replace(string(b), "a + b", "a", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if failed := mutants.Baseline(t.Context(), []mutants.Mutant{m}, mutants.Options{Root: dir}); len(failed) != 1 {
		t.Errorf("%+v", failed)
	}
}

func TestValidateNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	dir := tiny(t)
	err := mutants.Validate([]mutants.Mutant{
		one("twice", "a + b", "a", "TestAdd"), one("twice", "a / b", "a", "TestNone"), {Name: "nothing", Check: mutants.Test("sums", "TestAdd")},
	}, dir)
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range []string{"must be its own", "occurs 0 times", "no TestNone", "no patch"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q is not in: %v", text, err)
		}
	}
}
