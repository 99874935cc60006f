// Package promstampede reports guards, stores, budgets and locks to Prometheus, for programs that
// do not use OpenTelemetry.
//
//	metrics := promstampede.New()
//	prometheus.MustRegister(metrics)
//	store, err := cache.NewRedis(client, cache.Options{Namespace: "app", Observer: metrics})
//	users, err := guard.New[User](store, "users", guard.Policy{TTL: time.Minute, Observer: metrics})
//
// The names are those that OpenTelemetry's exporter for Prometheus gives to the metrics of
// package otelstampede, so that the same dashboards and alerts work with both.
package promstampede

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/measure"
)

// A Collector is an observer of guards, stores, budgets and locks, and a
// [prometheus.Collector]: give it to each of them as Observer, and register it once. It is safe for concurrent use.
type Collector struct {
	registry   measure.Registry
	histograms map[*measure.Instrument]*prometheus.HistogramVec
	counters   map[*measure.Instrument]*prometheus.CounterVec
	observed   map[*measure.Instrument]*prometheus.Desc
}

var (
	_ cache.Attacher       = (*Collector)(nil)
	_ prometheus.Collector = (*Collector)(nil)
)

// New returns a collector without components.
func New() *Collector {
	c := &Collector{
		histograms: map[*measure.Instrument]*prometheus.HistogramVec{},
		counters:   map[*measure.Instrument]*prometheus.CounterVec{},
		observed:   map[*measure.Instrument]*prometheus.Desc{},
	}
	for _, i := range measure.Instruments {
		name, labels := nameOf(i), make([]string, len(i.Labels))
		for n, label := range i.Labels {
			labels[n] = underscored(label)
		}
		switch {
		case i.Kind == measure.Histogram:
			c.histograms[i] = prometheus.NewHistogramVec(prometheus.HistogramOpts{
				Name: name, Help: i.Description, Buckets: i.Buckets,
			}, labels)
		case i.Observed:
			c.observed[i] = prometheus.NewDesc(name, i.Description, labels, nil)
		default:
			c.counters[i] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: i.Description}, labels)
		}
	}
	return c
}

// Attach implements [cache.Attacher].
func (c *Collector) Attach(name string, component any) (detach func()) {
	return c.registry.Attach(name, component)
}

// Observe implements [cache.Observer].
func (c *Collector) Observe(ev cache.Event) {
	measure.Record(&ev, func(i *measure.Instrument, value float64, labels ...string) {
		if h, ok := c.histograms[i]; ok {
			h.WithLabelValues(labels...).Observe(value)
		} else {
			c.counters[i].WithLabelValues(labels...).Add(value)
		}
	})
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, h := range c.histograms {
		h.Describe(to)
	}
	for _, n := range c.counters {
		n.Describe(to)
	}
	for _, d := range c.observed {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, h := range c.histograms {
		h.Collect(to)
	}
	for _, n := range c.counters {
		n.Collect(to)
	}
	c.registry.Collect(func(i *measure.Instrument, value float64, labels ...string) {
		kind := prometheus.GaugeValue
		if i.Kind == measure.Counter {
			kind = prometheus.CounterValue
		}
		to <- prometheus.MustNewConstMetric(c.observed[i], kind, value, labels...)
	})
}

// nameOf is the instrument's name in Prometheus: with the unit, and "total" for a counter.
func nameOf(i *measure.Instrument) string {
	name := underscored(i.Name)
	switch i.Unit {
	case "s":
		name += "_seconds"
	case "By":
		name += "_bytes"
	}
	if i.Kind == measure.Counter {
		name += "_total"
	}
	return name
}

func underscored(name string) string { return strings.ReplaceAll(name, ".", "_") }
