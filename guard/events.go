package guard

import (
	"context"
	"errors"
	"log/slog"

	"github.com/stampedeguard/stampede/cache"
)

type (
	// Event is that of package cache, whose stores report to the same kind of
	// observer.
	Event = cache.Event
	// Observer is that of package cache.
	Observer = cache.Observer
)

// Observers is that of package cache: an Observer that tells each of the given ones.
func Observers(all ...Observer) Observer { return cache.Observers(all...) }

// observe reports an event, if anybody wants to know.
func (e *engine) observe(ev Event) {
	e.counters.event(ev.Kind)
	if e.policy.Observer != nil {
		e.tell(ev)
	}
}

func (e *engine) observeAs(kind cache.EventKind, ev Event) {
	e.counters.event(kind)
	if e.policy.Observer != nil {
		ev.Kind = kind
		e.tell(ev)
	}
}

// endOfFetch is the kind of event that a fetch ends with.
func endOfFetch(err error) cache.EventKind {
	switch {
	case err == nil:
		return cache.FetchDone
	case errors.Is(err, ErrNotFound):
		return cache.FetchNotFound
	case errors.Is(err, ErrNotModified):
		return cache.FetchNotModified
	}
	return cache.FetchFailed
}

func (e *engine) tell(ev Event) {
	ev.Guard = e.name
	if e.policy.HideKeys {
		ev.Key = ""
	}
	e.policy.Observer.Observe(ev)
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
	if warnings[ev.Kind] {
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

// maxKeyText bounds a key in logs and errors: any bytes are a key, a whole URL say.
const maxKeyText = 200

func cutKey(key string) string {
	if len(key) > maxKeyText {
		return key[:maxKeyText] + "… (cut)"
	}
	return key
}
