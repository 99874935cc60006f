package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// A lineLog keeps the logged messages, and the counts in them by message.
type lineLog struct {
	mu     sync.Mutex
	level  slog.Level
	lines  []string
	counts map[string]int64
	last   map[string]string // error, by message
}

func (l *lineLog) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }
func (l *lineLog) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *lineLog) WithGroup(string) slog.Handler                    { return l }

func (l *lineLog) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimPrefix(r.Message, "stampede: ")
	l.lines = append(l.lines, text)
	if l.counts == nil {
		l.counts, l.last = map[string]int64{}, map[string]string{}
	}
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "count":
			l.counts[text] += a.Value.Int64()
		case "error":
			l.last[text] = a.Value.String()
		}
		return true
	})
	return nil
}

// written is how often each message was, at the level of the log.
func (l *lineLog) written() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]int{}
	for _, line := range l.lines {
		all[line]++
	}
	return all
}

func (l *lineLog) count(text string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[text]
}

func observerTo(level slog.Level) (cache.Observer, *lineLog) {
	l := &lineLog{level: level}
	return guard.LogObserver(slog.New(l)), l
}

func wantLines(t testing.TB, l *lineLog, want map[string]int) {
	t.Helper()
	if got := l.written(); !maps.Equal(got, want) {
		t.Errorf("written %v, want %v", got, want)
	}
}

func TestOutageOfRedisIsAFewLines(t *testing.T) {
	inRedis(t, func(w *world) {
		o, l := observerTo(slog.LevelWarn)
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Observer, p.Reserve.MaxBytes = o, guard.Off }))[0]
		must(w, w.server.Stop())
		ask := func(n int) {
			for i := range n {
				time.Sleep(10 * time.Millisecond)
				get(w, g, fmt.Sprint("key", i), (&origin{}).fetch)
			}
		}
		ask(1)
		wantLines(w, l, map[string]int{"unguarded": 1})
		ask(2499) // for 25 s, plus the waits for Redis
		wantLines(w, l, map[string]int{"unguarded": 1, "unguarded (repeated)": 2})
		time.Sleep(30 * time.Second)
		wantLines(w, l, map[string]int{"unguarded": 1, "unguarded (repeated)": 3, "unguarded (ended)": 1})
		if n := l.count("unguarded (repeated)"); n != 2499 {
			w.Errorf("%d were summed up, of 2499", n)
		}
		if n := l.count("unguarded (ended)"); n != 2500 {
			w.Errorf("the end tells of %d, of 2500", n)
		}
		ask(1) // a new one begins
		if n := l.written()["unguarded"]; n != 2 {
			w.Errorf("%d began", n)
		}
	})
}

func TestSingleWarningIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, l := observerTo(slog.LevelWarn)
		o.Observe(cache.Event{Kind: cache.FetchFailed, Guard: "g", Err: errors.New("boom")})
		time.Sleep(time.Hour)
		wantLines(t, l, map[string]int{"fetch_failed": 1})
	})
}

func TestEachRepetitionIsWrittenForDebugging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, l := observerTo(slog.LevelDebug)
		for range 100 {
			o.Observe(cache.Event{Kind: cache.FetchFailed, Guard: "g"})
		}
		wantLines(t, l, map[string]int{"fetch_failed": 100})
	})
}

// All that may come with each call.
func TestWarningsThatRepeatAreSummedUp(t *testing.T) {
	for _, kind := range []cache.EventKind{
		cache.FetchFailed, cache.RefreshFailed, cache.Unguarded, cache.FillRefused, cache.FillTooLarge, cache.EntryDamaged,
		cache.LeaseTakenOver, cache.LeaseLost, cache.KeyQuarantined, cache.MessageDamaged, cache.ProcessLate, cache.BudgetPaused,
	} {
		synctest.Test(t, func(t *testing.T) {
			o, l := observerTo(slog.LevelWarn)
			for i := range 1000 {
				o.Observe(cache.Event{Kind: kind, Err: fmt.Errorf("error %d", i)})
			}
			time.Sleep(time.Minute)
			text := string(kind)
			wantLines(t, l, map[string]int{text: 1, text + " (repeated)": 1, text + " (ended)": 1})
			if l.last[text+" (repeated)"] != "error 999" {
				t.Errorf("the latest error is %q", l.last[text+" (repeated)"])
			}
		})
	}
}

// A change of state is written each time: the last line gives the present state.
func TestChangesAreAlwaysWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, l := observerTo(slog.LevelWarn)
		var want []string
		for range 3 {
			for _, kind := range []cache.EventKind{
				cache.BreakerOpened, cache.BreakerClosed, cache.SubscriptionLost, cache.LivenessOff, cache.LivenessOn, cache.BudgetAway, cache.BudgetBack,
			} {
				o.Observe(cache.Event{Kind: kind, Node: "a"})
				want = append(want, string(kind))
			}
		}
		time.Sleep(time.Minute)
		if !slices.Equal(l.lines, want) {
			t.Errorf("written %v", l.lines)
		}
	})
}

func TestWarningsAreSummedUpApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, l := observerTo(slog.LevelWarn)
		for range 10 {
			o.Observe(cache.Event{Kind: cache.FetchFailed, Guard: "a", Err: errors.New("boom")})
			o.Observe(cache.Event{Kind: cache.FetchFailed, Guard: "b", Err: errors.New("boom")})
			o.Observe(cache.Event{Kind: cache.FetchFailed, Guard: "a", Err: &guard.PanicError{Value: "ouch"}})
			o.Observe(cache.Event{Kind: cache.ProcessLate, Node: "x"})
			o.Observe(cache.Event{Kind: cache.ProcessLate, Node: "y"})
		}
		wantLines(t, l, map[string]int{"fetch_failed": 3, "process_late": 2})
	})
}

// A program may make up guard names by the thousand. The memory for them is bounded.
func TestSumsOfManyGuardsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, l := observerTo(slog.LevelWarn)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for j := range 1000 {
					o.Observe(cache.Event{Kind: cache.FetchFailed, Guard: fmt.Sprint(i, "-", j)})
				}
			})
		}
		wg.Wait()
		if n := l.written()["fetch_failed"]; n != 257 {
			t.Errorf("%d were written at once, want 256 and one for all others", n)
		}
		time.Sleep(time.Minute)
		if n := l.count("fetch_failed (ended)"); n != 8000-256 {
			t.Errorf("the end tells of %d, want %d", n, 8000-256)
		}
	})
}
