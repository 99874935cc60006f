package report

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// ReadFile reads a file of WriteFile.
func (r *Report) ReadFile(name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, r); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// WriteFile writes all figures as JSON.
func (r *Report) WriteFile(name string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}

// Merge puts newly measured workloads in the place of older ones.
func (r *Report) Merge(works []*Workload, systems []System) {
	for _, w := range works {
		if i := slices.IndexFunc(r.Workloads, func(old *Workload) bool { return old.Name == w.Name }); i >= 0 {
			r.Workloads[i] = w
		} else {
			r.Workloads = append(r.Workloads, w)
		}
	}
	for _, s := range systems {
		if i := slices.IndexFunc(r.Systems, func(old System) bool { return old.Name == s.Name }); i >= 0 {
			r.Systems[i] = s
		} else {
			r.Systems = append(r.Systems, s)
		}
	}
}
