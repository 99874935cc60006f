package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// screenshotsEnv names the directory for screenshots; unset: none are kept.
const screenshotsEnv = "OBSERVABILITY_SCREENSHOTS"

// A browser is a real one, which records its complaints and its requests.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
	requests   []string
}

func openBrowser(t *testing.T) *browser {
	t.Helper()
	binary := tool(t, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(binary), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.UserDataDir(t.TempDir()))
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancelTab := chromedp.NewContext(allocator)
	ctx, cancelTime := context.WithTimeout(ctx, 4*time.Minute)
	t.Cleanup(func() { cancelTime(); cancelTab(); cancel() })
	b := &browser{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(ev any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch ev := ev.(type) {
		case *runtime.EventConsoleAPICalled:
			b.complaints = append(b.complaints, "console: "+string(ev.Type))
		case *runtime.EventExceptionThrown:
			b.complaints = append(b.complaints, "exception: "+ev.ExceptionDetails.Error())
		case *cdplog.EventEntryAdded:
			b.complaints = append(b.complaints, "log: "+ev.Entry.Text)
		case *network.EventRequestWillBeSent:
			b.requests = append(b.requests, ev.Request.URL)
		}
	})
	b.do(network.Enable(), cdplog.Enable())
	return b
}

func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) text(script string) (s string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(script, &s))
	return s
}

func (b *browser) number(script string) (n float64) {
	b.t.Helper()
	b.do(chromedp.Evaluate(script, &n))
	return n
}

func (b *browser) look(width int64, scheme string) {
	b.t.Helper()
	b.do(emulation.SetDeviceMetricsOverride(width, 900, 1, width < 500),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
}

// keep writes a screenshot, if screenshots are wanted.
func (b *browser) keep(name string) {
	b.t.Helper()
	dir := os.Getenv(screenshotsEnv)
	if dir == "" {
		return
	}
	var png []byte
	b.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		png, err = cdppage.CaptureScreenshot().Do(ctx)
		return err
	}))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) press(key string) {
	b.t.Helper()
	codes := map[string]int64{"Tab": 9, "Enter": 13, " ": 32}
	text := map[string]string{"Enter": "\r", " ": " "}[key]
	down := input.DispatchKeyEvent(input.KeyDown).WithKey(key).WithCode(key).WithWindowsVirtualKeyCode(codes[key]).WithText(text)
	b.do(down, input.DispatchKeyEvent(input.KeyUp).WithKey(key).WithCode(key).WithWindowsVirtualKeyCode(codes[key]))
}

// contrast is the lowest contrast of the page's texts with their ground, by WCAG 2.
const contrast = `(() => {
  const parse = c => c.match(/[\d.]+/g).map(Number);
  const lum = ([r, g, b]) => { const f = v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  let least = 99;
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
    const a = lum(parse(getComputedStyle(e).color)), g = lum(ground(e));
    least = Math.min(least, (Math.max(a, g) + .05) / (Math.min(a, g) + .05));
  }
  return least;
})()`

// isQuarantined reports whether the page lists a quarantined key.
func isQuarantined(url string) bool {
	r, err := http.Get(url + "?format=json")
	if err != nil {
		return false
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(r.Body)
	return err == nil && strings.Contains(string(b), `"quarantined",`)
}

func TestDebugPageInABrowser(t *testing.T) {
	p := start(t)
	url := "http://" + p.addrs[0] + "/debug/stampede"
	p.play(dying)
	p.await("quarantined key", 2*time.Minute, func() bool { return isQuarantined(url) })
	p.play(failing) // the processes live, and callers wait
	p.await("quarantined key in a process that lives", time.Minute, func() bool {
		time.Sleep(time.Second)
		return isQuarantined(url)
	})
	b := openBrowser(t)
	b.do(chromedp.Navigate(url), chromedp.WaitVisible("#g-users"))

	// It updates itself while a stampede runs.
	requests := `document.querySelector("#g-users").closest("section").querySelector("dd").textContent`
	before := b.text(requests)
	p.await("an update", 20*time.Second, func() bool { return b.text(requests) != before })
	p.await("a flight on the page", 30*time.Second, func() bool { return b.number(`document.querySelectorAll("#g-reports-flights").length`) > 0 })
	points := 2.
	if os.Getenv(screenshotsEnv) != "" {
		points = 24 // two minutes look better
	}
	p.await("a chart", 3*time.Minute, func() bool { return b.number(`document.querySelector("polyline").points.length`) >= points })
	if n := b.number(`[...document.querySelectorAll("h2")].filter(h => h.textContent === "Budgets").length`); n != 1 {
		t.Error("the page has no budgets")
	}
	b.do(chromedp.Navigate(url+"?guard=fragile&key=poison"), chromedp.WaitVisible("#lookup"))
	if got := b.text(`document.querySelector("#lookup").closest("section").querySelector("p").textContent`); !strings.Contains(got, "quarantined") {
		t.Errorf("Redis tells of the key: %q, want quarantined", got)
	}
	b.do(chromedp.Navigate(url), chromedp.WaitVisible("#g-users"))

	for _, width := range []int64{375, 1440} {
		for _, scheme := range []string{"light", "dark"} {
			name := fmt.Sprintf("debug-%s-%d", scheme, width)
			b.look(width, scheme)
			b.do(chromedp.Evaluate(`window.scrollTo(0, 0)`, nil))
			if n := b.number(`document.documentElement.scrollWidth`); int64(n) > width {
				t.Errorf("%s: the page is %v wide", name, n)
			}
			if c := b.number(contrast); c < 4.5 {
				t.Errorf("%s: a text has the contrast %.2f, want 4.5", name, c)
			}
			b.keep(name)
		}
	}

	// A reader with a keyboard alone pauses the updates and resets the key.
	b.do(chromedp.Evaluate(`document.activeElement.blur()`, nil))
	reach := func(what, test string) {
		t.Helper()
		for range 60 {
			b.press("Tab")
			if b.number(`(e => (`+test+`) ? 1 : 0)(document.activeElement)`) == 1 {
				if b.text(`getComputedStyle(document.activeElement).outlineStyle`) == "none" {
					t.Errorf("the focus on %s can't be seen", what)
				}
				return
			}
		}
		t.Fatalf("Tab does not reach %s", what)
	}
	reach("the pause button", `e.id === "pause"`)
	b.press(" ")
	if got := b.text(`document.getElementById("pause").getAttribute("aria-pressed")`); got != "true" {
		t.Errorf("aria-pressed is %q after Space", got)
	}
	b.press(" ")
	reach("the reset button", `e.getAttribute("aria-label") === "Reset poison"`)
	time.Sleep(1500 * time.Millisecond) // an update comes, by the page's own timer
	if got := b.text(`document.activeElement.getAttribute("aria-label") || ""`); got != "Reset poison" {
		t.Errorf("after an update the focus is on %q", got)
	}
	b.press("Enter")
	p.await("the word that the key was reset", 20*time.Second, func() bool {
		return strings.Contains(b.text(`document.getElementById("status")?.textContent || ""`), "poison was reset")
	})

	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.complaints) > 0 {
		t.Errorf("the browser complains: %v", b.complaints)
	}
	if len(b.requests) < 5 {
		t.Errorf("only %d requests were noted", len(b.requests))
	}
	for _, r := range b.requests {
		if !strings.HasPrefix(r, "http://"+p.addrs[0]+"/") && !strings.HasPrefix(r, "data:") {
			t.Errorf("the page asks for %s", r)
		}
	}
}
