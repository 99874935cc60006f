package main

import (
	"fmt"
	"strings"
)

const head = `# Collapsing: this project and five other caches

<!-- make collapse-peers writes this page. -->

The [collapsing suite](../middleware/collapse/README.md) asks each cache for the same page with many clients at once, and looks only at
the requests that arrive at the origin and at the answers. The table is written by ` + "`make collapse-peers`" + `, which starts each cache on the
loopback with the configuration in [internal/cmd/collapsepeers/conf](../internal/cmd/collapsepeers/conf). The other caches are packages
of Debian 12. A failed case is a difference in behavior, and not always a fault: the kind says how much it matters.

`

// table is the page.
func table(all []measured, list string) string {
	var b strings.Builder
	b.WriteString(head)
	b.WriteString("| cache | version | settings | required | optional | fleet |\n|---|---|---|---|---|---|\n")
	for _, m := range all {
		fmt.Fprintf(&b, "| %s | %s | %s |", m.name, m.version, m.settings)
		for _, kind := range []string{"required", "optional", "fleet"} {
			fmt.Fprintf(&b, " %s |", m.score(kind))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n## Cases\n\n+ passed, **−** failed, empty: not run.\n\n| case | kind |")
	for _, m := range all {
		fmt.Fprintf(&b, " %s |", m.name)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(all)) + "\n")
	var expected []string
	for line := range strings.Lines(list) {
		name, rest, _ := strings.Cut(line, " ")
		kind, expects, _ := strings.Cut(strings.TrimSpace(rest), " ")
		fmt.Fprintf(&b, "| `%s` | %s |", name, kind)
		for _, m := range all {
			fmt.Fprintf(&b, " %s |", m.mark(name))
		}
		b.WriteString("\n")
		expected = append(expected, fmt.Sprintf("- `%s`: %s", name, strings.TrimSpace(expects)))
	}
	b.WriteString("\n## Reasons\n")
	for _, m := range all {
		fmt.Fprintf(&b, "\n### %s\n\n", m.name)
		if m.err != nil {
			fmt.Fprintf(&b, "It could not be run: %v\n", m.err)
		}
		failed := false
		for _, r := range m.results {
			if !r.Pass {
				failed = true
				fmt.Fprintf(&b, "- `%s`: %s\n", r.Name, plain(r.Detail))
			}
		}
		if !failed && m.err == nil {
			b.WriteString("All cases passed.\n")
		}
	}
	b.WriteString("\n## What is expected\n\n" + strings.Join(expected, "\n") + "\n")
	return b.String()
}

// plain is a detail without ports, which differ from run to run, and without markup.
func plain(detail string) string {
	var kept []string
	for s := range strings.SplitSeq(detail, "; ") {
		// Of clients with different bodies, one is told.
		if len(kept) > 0 && strings.HasPrefix(s, "a client got ") && strings.HasPrefix(kept[0], "a client got ") || strings.HasPrefix(s, "and ") {
			continue
		}
		if i := strings.Index(s, "read tcp "); i >= 0 {
			_, why, _ := strings.Cut(s[i:], ": ")
			s = s[:i] + why
		}
		if len(kept) == 0 || kept[len(kept)-1] != s {
			kept = append(kept, s)
		}
	}
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(strings.Join(kept, "; "))
}

// score is the number of cases of a kind that passed.
func (m *measured) score(kind string) string {
	passed, all := 0, 0
	for _, r := range m.results {
		if r.Kind == kind {
			if all++; r.Pass {
				passed++
			}
		}
	}
	if all == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d", passed, all)
}

func (m *measured) mark(name string) string {
	for _, r := range m.results {
		if r.Name == name {
			if r.Pass {
				return "+"
			}
			return "**−**"
		}
	}
	return ""
}
