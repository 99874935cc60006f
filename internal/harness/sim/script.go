package sim

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// scripts knows the store's Lua scripts by the name of their file.
type scripts struct {
	names map[string]string // by SHA and by source
}

// readScripts reads the scripts of packages redisstore and budget, which do not export
// them, from their directories, or from where an overlay file has them.
// Those of package budget begin with the text of state.lua.
func readScripts(dirs [2]string, overlay string) (*scripts, error) {
	replaced, err := readOverlay(overlay)
	if err != nil {
		return nil, err
	}
	s := &scripts{names: map[string]string{}}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.lua"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("sim: no scripts in %s: %w", dir, err)
		}
		sources := map[string]string{}
		for _, file := range files {
			path, err := filepath.Abs(file)
			if err != nil {
				return nil, err
			}
			b, err := os.ReadFile(cmp.Or(replaced[path], path))
			if err != nil {
				return nil, err
			}
			sources[strings.TrimSuffix(filepath.Base(file), ".lua")] = string(b)
		}
		begin := sources["state"]
		for name, source := range sources {
			source = begin + source
			s.names[source], s.names[sha(source)] = name, name
		}
	}
	return s, nil
}

// readOverlay returns the files that stand in for others, by absolute path.
func readOverlay(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var overlay struct{ Replace map[string]string }
	if err := json.Unmarshal(b, &overlay); err != nil {
		return nil, fmt.Errorf("sim: overlay %s: %w", path, err)
	}
	return overlay.Replace, nil
}

func sha(source string) string {
	sum := sha1.Sum([]byte(source))
	return hex.EncodeToString(sum[:])
}
