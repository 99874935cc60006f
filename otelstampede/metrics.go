package otelstampede

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/measure"
)

// instruments are those of package measure, made by a meter.
type instruments struct {
	histograms map[*measure.Instrument]metric.Float64Histogram
	counters   map[*measure.Instrument]metric.Int64Counter
	observed   map[*measure.Instrument]metric.Float64Observable
	reading    metric.Registration
}

func newInstruments(meter metric.Meter, components *measure.Registry) (*instruments, error) {
	in := &instruments{
		histograms: map[*measure.Instrument]metric.Float64Histogram{},
		counters:   map[*measure.Instrument]metric.Int64Counter{},
		observed:   map[*measure.Instrument]metric.Float64Observable{},
	}
	var errs []error
	var read []metric.Observable
	for _, i := range measure.Instruments {
		var err error
		unit, text := metric.WithUnit(i.Unit), metric.WithDescription(i.Description)
		switch {
		case i.Kind == measure.Histogram:
			in.histograms[i], err = meter.Float64Histogram(i.Name, unit, text, metric.WithExplicitBucketBoundaries(i.Buckets...))
		case !i.Observed:
			in.counters[i], err = meter.Int64Counter(i.Name, unit, text)
		case i.Kind == measure.Counter:
			in.observed[i], err = meter.Float64ObservableCounter(i.Name, unit, text)
		case i.Kind == measure.UpDownCounter:
			in.observed[i], err = meter.Float64ObservableUpDownCounter(i.Name, unit, text)
		default:
			in.observed[i], err = meter.Float64ObservableGauge(i.Name, unit, text)
		}
		errs = append(errs, err)
		if i.Observed && err == nil {
			read = append(read, in.observed[i])
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var err error
	in.reading, err = meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		components.Collect(func(i *measure.Instrument, value float64, labels ...string) {
			to.ObserveFloat64(in.observed[i], value, metric.WithAttributeSet(attributesOf(i, labels)))
		})
		return nil
	}, read...)
	return in, err
}

// record records an event. The context lets the SDK take an exemplar.
func (in *instruments) record(ctx context.Context, ev *cache.Event) {
	measure.Record(ev, func(i *measure.Instrument, value float64, labels ...string) {
		set := metric.WithAttributeSet(attributesOf(i, labels))
		if h, ok := in.histograms[i]; ok {
			h.Record(ctx, value, set)
		} else {
			in.counters[i].Add(ctx, int64(value), set)
		}
	})
}

// attributesOf leaves out the attributes that do not apply.
func attributesOf(i *measure.Instrument, labels []string) attribute.Set {
	attrs := make([]attribute.KeyValue, 0, len(labels))
	for n, value := range labels {
		if value != "" {
			attrs = append(attrs, attribute.String(i.Labels[n], value))
		}
	}
	return attribute.NewSet(attrs...)
}
