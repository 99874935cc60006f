package mutants

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Validate returns all mistakes in the mutants: missing and repeated names, mutants
// without a patch, patches with a text that does not occur exactly once, and checks
// that do not exist.
func Validate(all []Mutant, root string) error {
	var errs []error
	names := map[string]bool{}
	for i := range all {
		m := &all[i]
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("mutants: %q: "+format, append([]any{m.Name}, args...)...))
		}
		if m.Name == "" || names[m.Name] {
			bad("the name must be its own")
		}
		names[m.Name] = true
		if len(m.Patches) == 0 {
			bad("it has no patch")
		}
		if _, err := m.patched(root); err != nil {
			errs = append(errs, err)
		}
		for _, test := range m.Check.tests() {
			if ok, err := hasTest(filepath.Join(root, filepath.FromSlash(m.Check.Package)), test); err != nil || !ok {
				bad("%s has no %s (%v)", m.Check.Package, test, err)
			}
		}
	}
	return errors.Join(errs...)
}

// tests are the names of a check's tests; nil for a pattern of another form.
func (c Check) tests() []string {
	names, one := strings.CutPrefix(c.Run, "^(")
	names, other := strings.CutSuffix(names, ")$")
	switch {
	case one && other:
		return strings.Split(names, "|")
	case c.Seeds > 0:
		return []string{simulatorTest}
	}
	return nil
}

// hasTest reports whether a folder's test files have a test.
func hasTest(folder, name string) (bool, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return false, err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return false, err
		}
		if strings.Contains(string(b), "\nfunc "+name+"(") {
			return true, nil
		}
	}
	return false, nil
}
