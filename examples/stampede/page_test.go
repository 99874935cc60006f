package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

func makePage(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.html")
	if _, stderr, code := play(t, small("-html", file)...); code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPageNeedsNothingButItself(t *testing.T) {
	page := makePage(t)
	for _, pattern := range []string{
		`(?i)(src|href|srcset|action|data|poster)\s*=\s*["']?(?:https?:)?//`,
		`(?i)url\(`, `(?i)@import`, `(?i)<script`, `(?i)<(iframe|object|embed)`, `(?i)https?://`,
	} {
		if found := regexp.MustCompile(pattern).FindString(page); found != "" {
			t.Errorf("the page has %q", found)
		}
	}
	if n := strings.Count(page, "<svg "); n != 6 {
		t.Errorf("the page has %d drawings, want 3 charts in two widths", n)
	}
	if left := regexp.MustCompile(`rgb\([^)]*\)`).FindString(page); left != "" {
		t.Errorf("the colour %s is fixed, in light and dark", left)
	}
	for _, want := range []string{"Fetches that reached the origin", "took over", "<td>singleflight</td>"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

// harness shows the page in frames of several widths and writes down the faults that
// a reader would meet.
const harness = `<!doctype html><title>harness</title><body><script>
const luminance = c => {
  const [r, g, b] = c.match(/[\d.]+/g).slice(0, 3).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const contrast = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
const opaque = c => c.startsWith('rgb(') && c !== 'rgba(0, 0, 0, 0)';
const ground = (w, e) => { for (; e; e = e.parentElement) { const c = w.getComputedStyle(e).backgroundColor; if (opaque(c)) return c; } return 'rgb(255, 255, 255)'; };
const inspect = width => new Promise(done => {
  const f = document.createElement('iframe');
  f.style.cssText = 'border:0;height:4000px;width:' + width + 'px';
  f.onload = () => {
    const w = f.contentWindow, d = w.document, faint = [], small = [];
    let text = Infinity, line = Infinity;
    for (const e of d.querySelectorAll('body *')) {
      if (!e.getClientRects().length) continue;
      const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
      const s = w.getComputedStyle(e), svg = e.namespaceURI.endsWith('svg');
      if (own) {
        const c = contrast(svg ? s.fill : s.color, ground(w, e));
        if (c < text) text = c;
        const scale = svg ? e.ownerSVGElement.getBoundingClientRect().width / e.ownerSVGElement.viewBox.baseVal.width : 1;
        if (parseFloat(s.fontSize) * scale < 10.5) small.push(e.textContent);
      } else if (e.tagName === 'path' && parseFloat(s.strokeWidth) > 2 && s.stroke !== 'none') {
        line = Math.min(line, contrast(s.stroke, ground(w, e)));
      }
    }
    done({ width, overflow: d.documentElement.scrollWidth - width, ground: w.getComputedStyle(d.body).backgroundColor,
      text, line, small, charts: [...d.querySelectorAll('svg')].filter(s => s.getClientRects().length).length,
      requests: w.performance.getEntriesByType('resource').map(r => r.name) });
  };
  f.src = '/page'; document.body.append(f);
});
Promise.all([360, 760, 761, 901, 1280].map(inspect)).then(r => { document.body.innerHTML = ''; const p = document.createElement('pre'); p.textContent = JSON.stringify(r); document.body.append(p); });
</script>`

// chromium finds the browser. Where the tests must all run it has to be there.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("no chromium or google-chrome: the page can't be looked at")
	}
	t.Skip("no chromium or google-chrome")
	return ""
}

func TestPageIsReadableInAllLayouts(t *testing.T) {
	browser := chromium(t)
	page := makePage(t)
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Path)
		mu.Unlock()
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		switch r.URL.Path {
		case "/":
			fmt.Fprint(w, harness)
		case "/page":
			fmt.Fprint(w, page)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	grounds := map[string]bool{}
	for scheme, setting := range map[string]string{"dark": "0", "light": "1"} {
		for _, v := range look(t, browser, server.URL, setting) {
			t.Logf("%s, %d px: text %.1f:1, lines %.1f:1", scheme, v.Width, v.Text, v.Line)
			grounds[v.Ground] = true
			if v.Overflow > 0 {
				t.Errorf("%s, %d px: %d px too wide", scheme, v.Width, v.Overflow)
			}
			if v.Text < 4.5 || v.Line < 3 { // WCAG 2.2, 1.4.3 and 1.4.11
				t.Errorf("%s, %d px: too little contrast: text %.2f:1, lines %.2f:1", scheme, v.Width, v.Text, v.Line)
			}
			if v.Charts != 3 || len(v.Small) > 0 || len(v.Requests) > 0 {
				t.Errorf("%s, %d px: %d charts seen, small text %q, requests %q", scheme, v.Width, v.Charts, v.Small, v.Requests)
			}
		}
	}
	if len(grounds) != 2 {
		t.Errorf("light and dark have the same ground: %v", grounds)
	}
	for _, path := range asked {
		if path != "/" && path != "/page" && path != "/favicon.ico" { // the harness has no icon
			t.Errorf("the page asked for %s", path)
		}
	}
}

// A view holds the findings of the harness at one width.
type view struct {
	Width, Overflow, Charts int
	Ground                  string
	Text, Line              float64 // the least contrast
	Small, Requests         []string
}

func look(t *testing.T, browser, url, scheme string) []view {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-dev-shm-usage", "--user-data-dir="+t.TempDir(), "--blink-settings=preferredColorScheme="+scheme,
		"--window-size=1400,1000", "--virtual-time-budget=10000", "--dump-dom", url)
	cmd.WaitDelay = 5 * time.Second
	dom, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", browser, err)
	}
	found := regexp.MustCompile(`(?s)<pre>(.*)</pre>`).FindSubmatch(dom)
	if found == nil {
		t.Fatalf("the harness told nothing:\n%s", dom)
	}
	var views []view
	if err := json.Unmarshal([]byte(html.UnescapeString(string(found[1]))), &views); err != nil {
		t.Fatal(err)
	}
	return views
}
