package mutants

import "slices"

// All lists the mutants.
func All() []Mutant {
	return slices.Concat(scriptMutants(), storeMutants(), connectionMutants(), guardMutants(), previewMutants(), nearMutants(), policyMutants(), manyMutants(), lockMutants())
}

// quick marks the mutants of make test.
func quick(all ...Mutant) []Mutant {
	for i := range all {
		all[i].Quick = true
	}
	return all
}

// in is a mutant of one patch.
func in(folder, name, old, replacement string, check Check) Mutant {
	return Mutant{Name: name, Patches: []Patch{{folder, old, replacement}}, Check: check}
}
