package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// patched returns the files that the mutant changes, by absolute path, as they are
// to be.
func (m *Mutant) patched(root string) (map[string]string, error) {
	files := map[string]string{}
	for _, p := range m.Patches {
		path, text, err := p.find(root, files)
		if err != nil {
			return nil, fmt.Errorf("mutants: %q: %w", m.Name, err)
		}
		files[path] = strings.Replace(text, p.Old, p.New, 1)
	}
	return files, nil
}

// find returns the file that has the patch's text, and its content, which an
// earlier patch may have changed.
func (p *Patch) find(root string, changed map[string]string) (path, text string, err error) {
	if p.Old == p.New || p.Old == "" {
		return "", "", fmt.Errorf("the patch of %s changes nothing", p.In)
	}
	names, err := sources(filepath.Join(root, filepath.FromSlash(p.In)))
	if err != nil {
		return "", "", err
	}
	found := 0
	for _, name := range names {
		content, ok := changed[name]
		if !ok {
			b, err := os.ReadFile(name)
			if err != nil {
				return "", "", err
			}
			content = string(b)
		}
		if n := strings.Count(content, p.Old); n > 0 {
			found += n
			path, text = name, content
		}
	}
	if found != 1 {
		return "", "", fmt.Errorf("its text occurs %d times in %s, and not once: %q", found, p.In, p.Old)
	}
	return path, text, nil
}

// sources lists the library's files in a folder, or the file that it is.
func sources(path string) ([]string, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, ".lua") || strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			names = append(names, filepath.Join(path, name))
		}
	}
	return names, nil
}
