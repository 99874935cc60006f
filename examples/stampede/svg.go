package main

import (
	"fmt"
	"math"
	"os"
	"strings"
)

// svgRow is a bar of the picture: the origin's calls in one mode of the first scene.
const svgRow = `<text x="10" y="%d">%s</text><rect class="%s" x="230" y="%d" width="%d" height="22" rx="3"/><text x="%d" y="%d">%s</text>
`

// writeSVG draws the calls that reached the origin in each mode of the first scene, on a
// scale of square roots: one call is to be seen beside a thousand.
func writeSVG(path string, rows []row) error {
	first := rows[:0:0]
	for _, r := range rows {
		if r.Name == rows[0].Name {
			first = append(first, r)
		}
	}
	most := 1
	for _, r := range first {
		most = max(most, r.Fetches)
	}
	var bars strings.Builder
	for i, r := range first {
		y := 62 + 34*i
		width := max(4, int(430*math.Sqrt(float64(r.Fetches)/float64(most))))
		class := "other"
		if r.Mode == "guard" {
			class = "ours"
		}
		calls := fmt.Sprintf("%d calls", r.Fetches)
		if r.Fetches == 1 {
			calls = "1 call"
		}
		fmt.Fprintf(&bars, svgRow, y+16, svgModes[r.Mode], class, y, width, 240+width, y+16, calls)
	}
	height := 72 + 34*len(first)
	picture := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 %d" width="760" height="%d" role="img" font-family="system-ui, sans-serif" font-size="15">
<title>Calls of the origin for one cold key</title>
<style>text{fill:#24292f}.other{fill:#afb8c1}.ours{fill:#1a7f37}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.other{fill:#6e7681}.ours{fill:#3fb950}}</style>
<text x="10" y="28" font-size="17" font-weight="600">%d callers in each of %d processes ask for one cold key</text>
%s</svg>
`, height, height, first[0].Callers, first[0].Procs, bars.String())
	return os.WriteFile(path, []byte(picture), 0o644) //nolint:gosec // a picture for everybody
}

var svgModes = map[string]string{"none": "no protection", "singleflight": "singleflight per process", "guard": "stampede"}
