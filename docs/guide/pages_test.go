// Package guide_test compiles the code of the guide pages and checks the pages.
package guide_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// Each block of Go code stands in a Go file of the repository, where it is compiled.
func TestPagesShowCompiledCode(t *testing.T) {
	compiled := goFiles(t, "../..")
	for _, page := range append(pages(t), "../../README.md") {
		for _, block := range goBlock.FindAllStringSubmatch(read(t, page), -1) {
			if !strings.Contains(compiled, flat(block[1])) {
				t.Errorf("%s: no Go file has this block:\n%s", page, block[1])
			}
		}
	}
}

var code = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")

var link = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

func TestPagesLinkToExistingFiles(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(read(t, page), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.FromSlash(m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

func pages(t *testing.T) []string {
	all, err := filepath.Glob("*.md")
	if err != nil || len(all) == 0 {
		t.Fatalf("%d pages, %v", len(all), err)
	}
	return all
}

func read(t *testing.T, name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// goFiles returns all Go files below root, without their indentation.
func goFiles(t *testing.T, root string) string {
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".go") {
			all.WriteString(flat(read(t, path)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// flat removes indentation, alignment and empty lines.
func flat(code string) string {
	var out strings.Builder
	for line := range strings.Lines(code) {
		if words := strings.Fields(line); len(words) > 0 {
			out.WriteString(strings.Join(words, " ") + "\n")
		}
	}
	return out.String()
}
