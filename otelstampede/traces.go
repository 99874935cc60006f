package otelstampede

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/measure"
	"github.com/stampedeguard/stampede/internal/telemetry"
)

// StartFetch implements [cache.Tracer]. The span is a child of the span of the call that
// leads. A fetch in the background outlives its call: its span is a root that links to the
// call's.
func (t *Telemetry) StartFetch(ctx context.Context, ev cache.Event) (context.Context, cache.TraceContext, func(cache.Event)) {
	attrs := []attribute.KeyValue{
		attribute.String("stampede.guard.name", ev.Guard),
		attribute.String("stampede.fetch.trigger", ev.Trigger),
		attribute.Int("stampede.fetch.attempt", ev.Attempt),
		attribute.Bool("stampede.lease.taken_over", ev.TakenOver),
	}
	if ev.Count > 1 {
		attrs = append(attrs, attribute.Int("stampede.fetch.keys", ev.Count))
	} else {
		attrs = t.key(attrs, ev.Key)
	}
	opts := []trace.SpanStartOption{trace.WithAttributes(attrs...)}
	if ev.Trigger == telemetry.TriggerEarly || ev.Trigger == telemetry.TriggerStale {
		opts = append(opts, trace.WithNewRoot())
		if caller := trace.SpanContextFromContext(ctx); caller.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: caller}))
		}
	}
	ctx, span := t.tracer.Start(ctx, "fetch "+ev.Guard, opts...)
	var names cache.TraceContext
	if sc := span.SpanContext(); sc.IsSampled() {
		names = traceContext(sc)
	}
	return ctx, names, func(end cache.Event) {
		span.SetAttributes(attribute.String("stampede.fetch.outcome", end.Outcome))
		if end.Outcome == telemetry.OutcomeError {
			failSpan(span, end.Err)
		}
		span.End()
	}
}

// shortestWait is the shortest wait that has a span: a span for each call would be most of
// the telemetry.
const shortestWait = time.Millisecond

// traceWait makes the span of a wait that has ended. It links to the span of the fetch.
func (t *Telemetry) traceWait(ctx context.Context, ev *cache.Event) {
	if ev.Count == 0 || ev.Duration < shortestWait || !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	attrs := []attribute.KeyValue{
		attribute.String("stampede.guard.name", ev.Guard),
		attribute.String("stampede.wait.outcome", ev.Outcome),
	}
	if ev.Count > 1 {
		attrs = append(attrs, attribute.Int("stampede.wait.keys", ev.Count))
	} else {
		attrs = t.key(attrs, ev.Key)
	}
	end := time.Now()
	opts := []trace.SpanStartOption{trace.WithAttributes(attrs...), trace.WithTimestamp(end.Add(-ev.Duration))}
	if !ev.Trace.IsZero() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: ev.Trace.TraceID(), SpanID: ev.Trace.SpanID(), TraceFlags: trace.TraceFlags(ev.Trace.Flags()), Remote: true,
		})}))
	}
	_, span := t.tracer.Start(ctx, "wait "+ev.Guard, opts...)
	if ev.Outcome != telemetry.OutcomeValue && ev.Outcome != telemetry.OutcomeTakeover && ev.Err != nil {
		failSpan(span, ev.Err)
	}
	span.End(trace.WithTimestamp(end))
}

func failSpan(span trace.Span, err error) {
	span.SetAttributes(attribute.String("error.type", measure.ErrorType(err)))
	if err != nil {
		// An exporter refuses a whole batch of spans for a text that is not UTF-8.
		span.SetStatus(codes.Error, strings.ToValidUTF8(err.Error(), "\uFFFD"))
	}
}

// traceContext is the span's for other processes.
func traceContext(sc trace.SpanContext) (t cache.TraceContext) {
	id, span := sc.TraceID(), sc.SpanID()
	copy(t[:16], id[:])
	copy(t[16:], span[:])
	t[24] = byte(sc.TraceFlags())
	return t
}
