package rfc9111_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the conformance table of docs/http.md anew")

// A rule is a requirement, and where it is from. Each row of a table has one.
type rule struct {
	section string // "9111 4.2.1"
	text    string
}

func (r rule) about() rule { return r }

// A tested rule is one with the test that shows it.
type tested struct {
	rule
	test, state string
}

// rulesOf returns the rules of a table's rows.
func rulesOf[R interface{ about() rule }](test string, rows []R) []tested {
	var ts []tested
	for _, r := range rows {
		ts = append(ts, tested{r.about(), test, kept})
	}
	return ts
}

// run runs a check for each row of a table, in a subtest that is named by its rule.
func run[R interface{ about() rule }](t *testing.T, rows []R, check func(*testing.T, R)) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.about().section+" "+r.about().text, func(t *testing.T) {
			t.Helper()
			check(t, r)
		})
	}
}

// tableRules are the rules that the tables of this package show.
func tableRules() []tested {
	var all []tested
	add := func(ts []tested) { all = append(all, ts...) }
	add(rulesOf("TestStore", storeRows))
	add(rulesOf("TestStoredHeader", storedHeaderRows))
	add(rulesOf("TestDirectives", directiveRows))
	add(rulesOf("TestFreshness", freshnessRows))
	add(rulesOf("TestMayServe", serveRows))
	add(rulesOf("TestMayServeOnError", onErrorRows))
	add(rulesOf("TestVary", varyRows))
	add(rulesOf("TestVariantKey", variantRows))
	add(rulesOf("TestAnswerFor", answerRows))
	add(rulesOf("TestNotModifiedHeader", notModifiedRows))
	add(rulesOf("TestSetConditions", conditionRows))
	add(rulesOf("TestSelected", selectedRows))
	add(rulesOf("TestFreshen", freshenRows))
	add(rulesOf("TestHeadAgrees", headRows))
	add(rulesOf("TestInvalidated", invalidatedRows))
	add(rulesOf("TestParseDate", dateRows))
	add(rulesOf("TestStatus", statusRows))
	return all
}

func everyRule() []tested { return append(tableRules(), elsewhere...) }

// sections are those of docs/http.md, in order. A rule's section belongs to the
// longest one that it begins with.
var sections = []struct{ number, title string }{
	{"9111 3", "RFC 9111, 3: storing responses"},
	{"9111 3.1", "RFC 9111, 3.1: storing header and trailer fields"},
	{"9111 3.2", "RFC 9111, 3.2: updating stored header fields"},
	{"9111 3.3", "RFC 9111, 3.3 and 3.4: incomplete responses, combining parts"},
	{"9111 3.5", "RFC 9111, 3.5: requests with Authorization"},
	{"9111 4", "RFC 9111, 4: constructing responses"},
	{"9111 4.1", "RFC 9111, 4.1: Vary"},
	{"9111 4.2", "RFC 9111, 4.2: freshness"},
	{"9111 4.3", "RFC 9111, 4.3: validation"},
	{"9111 4.4", "RFC 9111, 4.4: invalidation"},
	{"9111 5.1", "RFC 9111, 5.1: Age"},
	{"9111 5.2", "RFC 9111, 5.2: Cache-Control"},
	{"9111 5.2.1", "RFC 9111, 5.2.1: request directives"},
	{"9111 5.2.2", "RFC 9111, 5.2.2: response directives"},
	{"9111 5.3", "RFC 9111, 5.3 to 5.5: Expires, Pragma, Warning"},
	{"5861", "RFC 5861: stale-while-revalidate, stale-if-error"},
	{"8246", "RFC 8246: immutable"},
	{"9110 5.6.7", "RFC 9110, 5 to 9: dates, fields of the connection, HEAD"},
	{"9110 13", "RFC 9110, 13 and 15.4.5: conditional requests"},
	{"9110 14", "RFC 9110, 14: ranges"},
	{"9211", "RFC 9211: Cache-Status"},
	{"9213", "RFC 9213: targeted cache control"},
}

func sectionOf(number string) int {
	switch { // chapters of their own that share a heading
	case strings.HasPrefix(number, "9111 3.4"):
		number = "9111 3.3"
	case strings.HasPrefix(number, "9111 5.4"), strings.HasPrefix(number, "9111 5.5"):
		number = "9111 5.3"
	case strings.HasPrefix(number, "9110 15.4.5"):
		number = "9110 13"
	case strings.HasPrefix(number, "9110 6"), strings.HasPrefix(number, "9110 7"), strings.HasPrefix(number, "9110 9"):
		number = "9110 5.6.7"
	}
	best := -1
	for i, s := range sections {
		if number == s.number || strings.HasPrefix(number, s.number+".") || strings.HasPrefix(number, s.number+" ") {
			if best < 0 || len(s.number) > len(sections[best].number) {
				best = i
			}
		}
	}
	return best
}

const tableBegin, tableEnd = "<!-- table: begin -->\n", "<!-- table: end -->"

// conformance is the table of docs/http.md: for each section the number of rules that each
// table of this package shows, and the rules that other tests show.
func conformance(t *testing.T) string {
	bySection := func(rules []tested) map[int][]tested {
		m := map[int][]tested{}
		for _, r := range rules {
			i := sectionOf(r.section)
			if i < 0 {
				t.Fatalf("section %q is not among sections", r.section)
			}
			m[i] = append(m[i], r)
		}
		return m
	}
	tables, others := bySection(tableRules()), bySection(elsewhere)
	var b strings.Builder
	b.WriteString("\n| section | rule | test |\n|---|---|---|\n")
	for i, s := range sections {
		fmt.Fprintf(&b, "| **%s** | %s |\n", s.title, counted(tables[i]))
		for _, r := range others[i] {
			_, number, _ := strings.Cut(r.section, " ")
			fmt.Fprintf(&b, "| %s | %s | %s |\n", number, strings.ReplaceAll(r.text, "|", `\|`), shownBy(r))
		}
	}
	return b.String() + "\n"
}

// counted is the number of rules, and each test with its share.
func counted(rules []tested) string {
	if len(rules) == 0 {
		return "|"
	}
	var tests []string
	of := map[string]int{}
	for _, r := range rules {
		if of[r.test]++; of[r.test] == 1 {
			tests = append(tests, r.test)
		}
	}
	if len(tests) > 1 {
		for i, test := range tests {
			tests[i] = fmt.Sprintf("%s: %d", test, of[test])
		}
	}
	return fmt.Sprintf("%d rules | %s", len(rules), strings.Join(tests, ", "))
}

func shownBy(r tested) string {
	if r.state != kept {
		return "*" + r.state + "*"
	}
	return r.test
}

func TestDocsListTheRulesWithTheirTests(t *testing.T) {
	const file = "../../docs/http.md"
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), tableBegin)
	old, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no table", file)
	}
	table := conformance(t)
	if table == old {
		return
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("docs/http.md and the tables of the tests disagree; go test ./internal/rfc9111 -run Docs -update writes it. First difference: %s", firstDifference(old, table))
}

func firstDifference(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range bs {
		if i >= len(as) || as[i] != bs[i] {
			return bs[i]
		}
	}
	return "lines that are in the file only"
}

func TestRulesAreListedOnce(t *testing.T) {
	seen := map[rule]bool{}
	for _, r := range everyRule() {
		if seen[r.rule] {
			t.Errorf("%s %s: listed twice", r.section, r.text)
		}
		seen[r.rule] = true
		if strings.ContainsAny(r.text, "\n") || r.text == "" {
			t.Errorf("%s %q is no line of a table", r.section, r.text)
		}
	}
}

// The tests that the table names exist, in this package, middleware or transport.
func TestNamedTestsExist(t *testing.T) {
	here := testsIn(t, ".")
	there := map[string]map[string]bool{
		"middleware": testsIn(t, "../../middleware"), "transport": testsIn(t, "../../middleware/transport"),
	}
	for _, r := range everyRule() {
		if r.test == "" && r.state == kept {
			t.Errorf("%s %s: kept, and no test is named", r.section, r.text)
		}
		for _, test := range strings.Split(r.test, ", ") {
			pkg, name, qualified := strings.Cut(test, ".")
			if test != "" && (!qualified && !here[test] || qualified && !there[pkg][name]) {
				t.Errorf("%s %s: there is no %s", r.section, r.text, test)
			}
		}
	}
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

func testsIn(t *testing.T, dir string) map[string]bool {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllSubmatch(src, -1) {
			names[string(m[1])] = true
		}
	}
	return names
}
