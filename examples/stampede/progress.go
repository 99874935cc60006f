package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// A progress shows the present scene, on standard error so that standard output has
// nothing but the report: one line that changes in a terminal, a line per scene
// elsewhere.
type progress struct {
	out   *os.File
	live  bool
	label string
	total int
}

func newProgress(out *os.File) *progress {
	return &progress{out: out, live: term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb"}
}

// colourful reports whether f wants colours (https://no-color.org).
func colourful(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

func (p *progress) begin(sc scene, c config) {
	p.label = fmt.Sprintf("%-5s  %-12s", sc.name, sc.mode)
	p.total = c.procs * c.callers
	if p.live {
		p.rewrite(p.label + "  starting processes")
	} else {
		fmt.Fprintf(p.out, "playing %s, %s\n", sc.name, sc.mode)
	}
}

func (p *progress) update(since time.Duration, fetches, answered int) {
	if !p.live || since < 0 {
		return
	}
	const width = 24
	full := answered * width / max(p.total, 1)
	p.rewrite(fmt.Sprintf("%s  %s%s  %d of %d callers answered, fetches %d, %.1f s", p.label,
		strings.Repeat("█", full), strings.Repeat("░", width-full), answered, p.total, fetches, since.Seconds()))
}

// end removes the changing line.
func (p *progress) end() {
	if p.live {
		p.rewrite("")
	}
}

func (p *progress) rewrite(line string) {
	if width, _, err := term.GetSize(int(p.out.Fd())); err == nil && width > 1 {
		if r := []rune(line); len(r) >= width {
			line = string(r[:width-1]) // a line that wraps can't be rewritten
		}
	}
	fmt.Fprint(p.out, "\r\x1b[K"+line)
}
