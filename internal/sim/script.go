package sim

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// scripts knows the store's Lua scripts by the name of their file, and what a
// mutant puts in their place.
type scripts struct {
	names map[string]string // by SHA and by source
	swap  map[string]string // SHA to SHA and source to source, for a mutant
}

// readScripts reads the scripts of package cache, whose sources it keeps to
// itself, from their directory.
func readScripts(dir string, mutate map[string]func(string) string) (*scripts, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.lua"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("sim: no scripts in %s: %w", dir, err)
	}
	s := &scripts{names: map[string]string{}, swap: map[string]string{}}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name, source := strings.TrimSuffix(filepath.Base(file), ".lua"), string(b)
		s.names[source], s.names[sha(source)] = name, name
		if change := mutate[name]; change != nil {
			mutant := change(source)
			if mutant == source {
				return nil, fmt.Errorf("sim: the mutant of %s changes nothing", name)
			}
			s.swap[source], s.swap[sha(source)] = mutant, sha(mutant)
		}
	}
	return s, nil
}

func sha(source string) string {
	sum := sha1.Sum([]byte(source))
	return hex.EncodeToString(sum[:])
}
