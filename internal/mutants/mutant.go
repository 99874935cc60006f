package mutants

import (
	"fmt"
	"strings"
)

// A Mutant is the library with something taken out of it.
type Mutant struct {
	Name    string
	Patches []Patch // at least one
	Check   Check   // that must fail

	// Quick mutants are those of make test.
	Quick bool

	// Equivalent says why no check can fail: the mutant behaves as the library
	// does. Empty: one must. It is an error if the check fails all the same.
	Equivalent string
}

// A Patch replaces some text of the library's source.
type Patch struct {
	// In is a folder below the module's root, or a file.
	In string
	// Old must occur exactly once in the folder's .go and .lua files, tests
	// aside.
	Old, New string
}

// A Check is a test to be run: those of a package that match a pattern, or seeds of
// the simulator.
type Check struct {
	Package string // below the module's root
	Run     string // regular expression, of top-level tests

	Seeds int      // the simulator plays so many
	Rules []string // it looks at these alone; none: at all
	With  string   // it plays only seeds with this feature; empty: all
}

// Test is the check by the named tests of a package.
func Test(pkg string, names ...string) Check {
	return Check{Package: pkg, Run: "^(" + strings.Join(names, "|") + ")$"}
}

// The simulator is a package with one test that plays seeds.
const (
	simulator     = "internal/harness/sim"
	simulatorTest = "TestSim"
)

// Sim is the check by so many seeds of the simulator, of which any of the rules
// must be broken.
func Sim(seeds int, rules ...string) Check {
	return Check{Package: simulator, Run: "^" + simulatorTest + "$", Seeds: seeds, Rules: rules}
}

// Of is a check by seeds with a feature.
func (c Check) Of(feature string) Check {
	c.With = feature
	return c
}

func (c Check) String() string {
	if c.Seeds == 0 {
		return c.Package + " " + strings.Trim(c.Run, "^()$")
	}
	text := fmt.Sprintf("%d seeds", c.Seeds)
	if c.With != "" {
		text += " with " + c.With
	}
	if len(c.Rules) > 0 {
		text += ", rule " + strings.Join(c.Rules, " or ")
	}
	return text
}

// args are those of the check's test binary.
func (c Check) args() []string {
	args := []string{"-test.run=" + c.Run, "-test.failfast", "-test.timeout=" + c.timeout().String()}
	if c.Seeds > 0 {
		args = append(args, fmt.Sprintf("-seeds=%d", c.Seeds), "-rules="+strings.Join(c.Rules, ","), "-with="+c.With)
	}
	return args
}
