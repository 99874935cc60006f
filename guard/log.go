package guard

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// LogObserver returns an Observer that writes events to a structured logger; nil
// means slog.Default(). The logger's handler is given the context of the call that an
// event is about ([cache.ContextObserver]). Events that an operator should look at are warnings, the
// others are written at debug level. Of a key it writes 200 bytes at most.
//
// Warnings that may come with each call, while Redis is away for example, are
// written once when they begin. While they go on, a summary follows every ten
// seconds: "(repeated)", with their count and the latest error. When there was none
// for ten seconds, "(ended)" tells their total. Those of each kind and guard, or
// node, are summed up apart, and so are panics. Each single one is written at debug
// level.
func LogObserver(logger *slog.Logger) cache.Observer {
	if logger == nil {
		logger = slog.Default()
	}
	return &logObserver{logger: logger, storms: map[stormKey]*storm{}}
}

// A logObserver is safe for concurrent use. It has no goroutine: a storm has a timer
// while it lasts.
type logObserver struct {
	logger *slog.Logger

	mu     sync.Mutex // not held while something is written
	storms map[stormKey]*storm
}

const (
	// sumEvery is how often warnings that repeat are summed up.
	sumEvery = 10 * time.Second
	// maxStorms are told apart. Those of further guards are summed up together, by
	// their kind.
	maxStorms = 256
)

// A storm is a row of warnings of one kind, with less than sumEvery between them.
type storm struct {
	began, at time.Time // of the first, and of the latest
	err       error     // of the latest
	repeated  int       // since it was last written of
	total     int
}

type stormKey struct {
	kind        cache.EventKind
	guard, node string
	panicked    bool
}

// Whether a warning may come with each call, and is summed up, or tells of a change,
// and is always written.
const (
	changes = iota + 1
	repeats
)

var warnings = map[cache.EventKind]int{
	cache.BreakerOpened: changes, cache.BreakerClosed: changes, cache.SubscriptionLost: changes,
	cache.LivenessOff: changes, cache.LivenessOn: changes, cache.BudgetAway: changes, cache.BudgetBack: changes,

	cache.FetchFailed: repeats, cache.RefreshFailed: repeats, cache.Unguarded: repeats,
	cache.FillRefused: repeats, cache.FillTooLarge: repeats, cache.EntryDamaged: repeats,
	cache.LeaseTakenOver: repeats, cache.LeaseLost: repeats, cache.KeyQuarantined: repeats,
	cache.MessageDamaged: repeats, cache.ProcessLate: repeats, cache.BudgetPaused: repeats,
	cache.JobFailed: repeats, cache.JobGaveUp: repeats,
}

// Observe implements [Observer].
func (l *logObserver) Observe(ev cache.Event) { l.ObserveContext(context.Background(), ev) }

// ObserveContext implements [cache.ContextObserver].
func (l *logObserver) ObserveContext(ctx context.Context, ev cache.Event) {
	level := slog.LevelDebug
	switch warnings[ev.Kind] {
	case changes:
		level = slog.LevelWarn
	case repeats:
		if l.logger.Enabled(ctx, slog.LevelWarn) && l.begins(ev) {
			level = slog.LevelWarn
		}
	}
	if l.logger.Enabled(ctx, level) {
		l.write(ctx, level, string(ev.Kind), attrsOf(ev))
	}
}

// begins counts a warning, and reports whether it is the first of a storm.
func (l *logObserver) begins(ev cache.Event) bool {
	var panicked *PanicError
	key := stormKey{ev.Kind, ev.Guard, ev.Node, errors.As(ev.Err, &panicked)}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.storms[key]
	if s == nil && len(l.storms) >= maxStorms {
		key = stormKey{kind: ev.Kind}
		s = l.storms[key]
	}
	if s == nil {
		l.storms[key] = &storm{began: now, at: now, err: ev.Err, total: 1}
		time.AfterFunc(sumEvery, func() { l.sumUp(key) })
		return true
	}
	s.at, s.err = now, ev.Err
	s.repeated++
	s.total++
	return false
}

// sumUp writes of a storm every sumEvery, and of its end.
func (l *logObserver) sumUp(key stormKey) {
	l.mu.Lock()
	s := l.storms[key]
	was := *s
	s.repeated = 0
	if was.repeated == 0 {
		delete(l.storms, key)
	} else {
		time.AfterFunc(sumEvery, func() { l.sumUp(key) })
	}
	l.mu.Unlock()
	attrs := labels(key.guard, key.node)
	switch {
	case was.repeated > 0:
		attrs = append(attrs, slog.Int("count", was.repeated), slog.Duration("within", sumEvery))
		if was.err != nil {
			attrs = append(attrs, slog.String("error", was.err.Error()))
		}
		l.write(context.Background(), slog.LevelWarn, string(key.kind)+" (repeated)", attrs)
	case was.total > 1:
		attrs = append(attrs, slog.Int("count", was.total), slog.Duration("within", was.at.Sub(was.began)))
		l.write(context.Background(), slog.LevelWarn, string(key.kind)+" (ended)", attrs)
	}
}

func (l *logObserver) write(ctx context.Context, level slog.Level, text string, attrs []slog.Attr) {
	l.logger.LogAttrs(ctx, level, "stampede: "+text, attrs...)
}

// labels are the attributes by which events are told apart.
func labels(guard, node string) []slog.Attr {
	attrs := make([]slog.Attr, 0, 8)
	if guard != "" {
		attrs = append(attrs, slog.String("guard", guard))
	}
	if node != "" {
		attrs = append(attrs, slog.String("node", node))
	}
	return attrs
}

func attrsOf(ev cache.Event) []slog.Attr {
	attrs := labels(ev.Guard, ev.Node)
	if ev.Key != "" {
		attrs = append(attrs, slog.String("key", cutKey(ev.Key)))
	}
	if !ev.Token.IsZero() {
		attrs = append(attrs, slog.String("token", ev.Token.String()))
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
	for _, a := range []struct{ name, value string }{
		{"trigger", ev.Trigger},
		{"outcome", ev.Outcome},
		{"reason", ev.Reason},
		{"operation", ev.Operation},
		{"budget", ev.Budget},
		{"priority", ev.Priority},
	} {
		if a.value != "" {
			attrs = append(attrs, slog.String(a.name, a.value))
		}
	}
	if ev.Err != nil {
		attrs = append(attrs, slog.String("error", ev.Err.Error()))
	}
	if panicked := (*PanicError)(nil); errors.As(ev.Err, &panicked) { // its text has no stack
		attrs = append(attrs, slog.String("stack", string(panicked.Stack)))
	}
	return attrs
}
