package guard

import (
	"context"
	"errors"
	"log/slog"
	"strconv"

	"github.com/stampedeguard/stampede/cache"
)

type (
	// Event is that of package cache, whose stores report to the same kind of
	// observer.
	Event = cache.Event
	// Observer is that of package cache.
	Observer = cache.Observer
)

// A reporter counts what happens in a guard and tells its Observer.
type reporter struct {
	guard    string
	observer Observer // nil: none
	hideKeys bool
	counters
}

func (r *reporter) report(kind cache.EventKind, ev Event) {
	r.event(kind)
	if r.observer == nil {
		return
	}
	ev.Kind, ev.Guard = kind, r.guard
	if r.hideKeys {
		ev.Key = ""
	}
	r.observer.Observe(ev)
}

// quote names a key in an error, which may end up in an event.
func (r *reporter) quote(key string) string {
	if r.hideKeys {
		return "a key"
	}
	return strconv.Quote(cutKey(key))
}

// LogObserver reports events to a structured logger: what an operator should
// look at as warnings, the rest at debug level. Of a key it writes 200 bytes at
// most.
func LogObserver(logger *slog.Logger) Observer { return logObserver{logger} }

type logObserver struct{ logger *slog.Logger }

var warnings = map[cache.EventKind]bool{
	cache.LeaseTakenOver: true, cache.LeaseLost: true, cache.FetchFailed: true,
	cache.FillRefused: true, cache.FillTooLarge: true, cache.KeyQuarantined: true,
	cache.RefreshFailed: true, cache.Unguarded: true, cache.EntryDamaged: true,
	cache.BreakerOpened: true, cache.BreakerClosed: true, cache.SubscriptionLost: true,
	cache.LivenessOff: true, cache.MessageDamaged: true, cache.ProcessLate: true,
	cache.BudgetPaused: true, cache.BudgetAway: true, cache.BudgetBack: true,
}

// Observe implements [Observer].
func (l logObserver) Observe(ev Event) {
	level := slog.LevelDebug
	if warnings[ev.Kind] && !ordinary(ev) {
		level = slog.LevelWarn
	}
	ctx := context.Background()
	if !l.logger.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 8)
	text := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	text("guard", ev.Guard)
	text("key", cutKey(ev.Key))
	text("node", ev.Node)
	if !ev.Token.IsZero() {
		text("token", ev.Token.String())
	}
	if ev.Attempt != 0 {
		attrs = append(attrs, slog.Int("attempt", ev.Attempt))
	}
	if ev.Size != 0 {
		attrs = append(attrs, slog.Int("bytes", ev.Size))
	}
	if ev.Duration != 0 {
		attrs = append(attrs, slog.Duration("duration", ev.Duration))
	}
	if ev.Err != nil {
		text("error", ev.Err.Error())
	}
	if panicked := (*PanicError)(nil); errors.As(ev.Err, &panicked) { // whose text has no stack
		text("stack", string(panicked.Stack))
	}
	l.logger.LogAttrs(ctx, level, "stampede: "+string(ev.Kind), attrs...)
}

// ordinary reports whether a fetch that has failed has only said what a fetch may.
func ordinary(ev Event) bool {
	switch ev.Kind {
	case cache.FetchFailed, cache.RefreshFailed:
		return errors.Is(ev.Err, ErrNotFound) || errors.Is(ev.Err, ErrNotModified)
	}
	return false
}

// maxKeyText bounds a key in logs and errors: any bytes are a key, a whole URL say.
const maxKeyText = 200

func cutKey(key string) string {
	if len(key) > maxKeyText {
		return key[:maxKeyText] + "… (cut)"
	}
	return key
}
