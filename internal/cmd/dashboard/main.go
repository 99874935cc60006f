// Command dashboard writes the Grafana dashboard of dashboards/stampede.json to its standard
// output. `make dashboard` runs it.
package main

import (
	"encoding/json"
	"log"
	"os"
)

func main() {
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(dashboard()); err != nil {
		log.Fatal(err)
	}
}

// A panel is a panel in half the width of the dashboard, or in its whole width.
type panel struct {
	title, text, unit string
	queries           []query
	wide, stacked     bool
}

// A query is a PromQL expression and the legend of its series.
type query struct{ expr, legend string }

// A row is a group of panels.
type row struct {
	title  string
	panels []panel
}

const (
	byGuard = "{{stampede_guard_name}}"
	of      = `stampede_guard_name=~"$guard"`
)

var rows = []row{
	{"How well it works", []panel{
		{"Requests by source", "Hits are near and store. An error has an error_type in place of a source.", "reqps", []query{
			{`sum by (stampede_source, error_type) (rate(stampede_requests_total{` + of + `}[$__rate_interval]))`, "{{stampede_source}}{{error_type}}"},
		}, true, true},
		{"Hit, stale and miss ratio", "", "percentunit", []query{
			{`sum(rate(stampede_requests_total{` + of + `,stampede_source=~"near|store"}[$__rate_interval])) / sum(rate(stampede_requests_total{` + of + `}[$__rate_interval]))`, "hit"},
			{`sum(rate(stampede_requests_total{` + of + `,stampede_source="stale"}[$__rate_interval])) / sum(rate(stampede_requests_total{` + of + `}[$__rate_interval]))`, "stale"},
			{`sum(rate(stampede_requests_total{` + of + `,stampede_source=~".+_fetch|unguarded"}[$__rate_interval])) / sum(rate(stampede_requests_total{` + of + `}[$__rate_interval]))`, "miss"},
		}, false, false},
		{"Callers served per fetch", "How many requests one fetch answers: what the guard saves the origin.", "short", []query{
			{`sum by (stampede_guard_name) (rate(stampede_requests_total{` + of + `}[$__rate_interval])) / (sum by (stampede_guard_name) (rate(stampede_fetch_duration_seconds_count{` + of + `}[$__rate_interval])) > 0)`, byGuard},
		}, false, false},
	}},
	{"Fetches", []panel{
		{"Fetches by trigger and outcome", "", "ops", []query{
			{`sum by (stampede_fetch_trigger, stampede_fetch_outcome) (rate(stampede_fetch_duration_seconds_count{` + of + `}[$__rate_interval]))`, "{{stampede_fetch_trigger}}, {{stampede_fetch_outcome}}"},
		}, false, true},
		{"Duration of fetches", "", "s", []query{
			{`histogram_quantile(0.5, sum by (le) (rate(stampede_fetch_duration_seconds_bucket{` + of + `}[$__rate_interval])))`, "p50"},
			{`histogram_quantile(0.99, sum by (le) (rate(stampede_fetch_duration_seconds_bucket{` + of + `}[$__rate_interval])))`, "p99"},
		}, false, false},
		{"Fetches and callers that wait, now", "", "short", []query{
			{`sum by (stampede_guard_name) (stampede_fetch_active{` + of + `})`, byGuard + ", fetches"},
			{`sum by (stampede_guard_name) (stampede_wait_active{` + of + `})`, byGuard + ", callers"},
		}, false, false},
		{"Waits by outcome", "Waits for the fetch of another caller, here or in another process.", "ops", []query{
			{`sum by (stampede_wait_outcome) (rate(stampede_wait_duration_seconds_count{` + of + `}[$__rate_interval]))`, "{{stampede_wait_outcome}}"},
		}, false, true},
		{"p99 of waits, and half of FetchTimeout", "", "s", []query{
			{`histogram_quantile(0.99, sum by (stampede_guard_name, le) (rate(stampede_wait_duration_seconds_bucket{` + of + `}[$__rate_interval])))`, byGuard},
			{`0.5 * max by (stampede_guard_name) (stampede_fetch_timeout_seconds{` + of + `})`, byGuard + ", half of FetchTimeout"},
		}, false, false},
		{"Age of stale values", "", "s", []query{
			{`histogram_quantile(0.99, sum by (stampede_reason, le) (rate(stampede_stale_age_seconds_bucket{` + of + `}[$__rate_interval])))`, "p99, {{stampede_reason}}"},
		}, false, false},
	}},
	{"Leases and entries", []panel{
		{"Requests for a lease by answer", "", "ops", []query{
			{`sum by (stampede_lease_answer) (rate(stampede_lease_requests_total{` + of + `}[$__rate_interval]))`, "{{stampede_lease_answer}}"},
		}, false, false},
		{"Lost leases and refused fills", "", "ops", []query{
			{`sum(rate(stampede_lease_losses_total{` + of + `}[$__rate_interval]))`, "leases lost"},
			{`sum by (stampede_reason) (rate(stampede_fill_refusals_total{` + of + `}[$__rate_interval]))`, "fill refused: {{stampede_reason}}"},
		}, false, false},
		{"Size of entries", "", "bytes", []query{
			{`histogram_quantile(0.99, sum by (stampede_guard_name, le) (rate(stampede_entry_size_bytes_bucket{` + of + `}[$__rate_interval])))`, "p99, " + byGuard},
		}, false, false},
		{"Invalidations", "", "ops", []query{
			{`sum by (stampede_operation, error_type) (rate(stampede_invalidations_total{` + of + `}[$__rate_interval]))`, "{{stampede_operation}} {{error_type}}"},
		}, false, false},
	}},
	{"Near cache", []panel{
		{"Entries", "", "short", []query{{`sum by (stampede_guard_name) (stampede_near_entry_count{` + of + `})`, byGuard}}, false, false},
		{"Bypasses and evictions", "", "ops", []query{
			{`sum by (stampede_guard_name) (rate(stampede_near_bypasses_total{` + of + `}[$__rate_interval]))`, byGuard + ", bypassed"},
			{`sum by (stampede_guard_name) (rate(stampede_near_evictions_total{` + of + `}[$__rate_interval]))`, byGuard + ", evicted"},
		}, false, false},
	}},
	{"Redis and the process", []panel{
		{"Processes whose breaker is open", "", "short", []query{
			{`sum by (server_address, server_port) (stampede_store_breaker_status{stampede_state="open"})`, "{{server_address}}:{{server_port}}"},
		}, false, false},
		{"Processes without a subscription", "", "short", []query{
			{`sum by (server_address, server_port) (stampede_store_subscription_status{stampede_state="lost"})`, "{{server_address}}:{{server_port}}"},
		}, false, false},
	}},
	{"Budgets", []panel{
		{"Remaining and limit", "The budget is shared by the fleet. Each process reports what it last heard.", "short", []query{
			{`min by (stampede_budget_name) (stampede_budget_remaining)`, "{{stampede_budget_name}}, remaining"},
			{`max by (stampede_budget_name) (stampede_budget_limit)`, "{{stampede_budget_name}}, limit"},
		}, false, false},
		{"Refusals", "", "ops", []query{
			{`sum by (stampede_budget_name, stampede_budget_priority) (rate(stampede_budget_refusals_total[$__rate_interval]))`, "{{stampede_budget_name}}, {{stampede_budget_priority}}"},
		}, false, false},
	}},
}

type object = map[string]any

// dashboard is the model of the dashboard in Grafana's JSON (schema version 39, Grafana 11).
func dashboard() object {
	var panels []object
	y := 0
	for _, r := range rows {
		panels = append(panels, object{
			"id": len(panels) + 1, "type": "row", "title": r.title, "collapsed": false, "panels": []any{},
			"gridPos": object{"x": 0, "y": y, "w": 24, "h": 1},
		})
		y++
		x := 0
		for _, p := range r.panels {
			w := 12
			if p.wide {
				w = 24
			}
			if x+w > 24 {
				x, y = 0, y+8
			}
			panels = append(panels, p.model(len(panels)+1, x, y, w))
			x += w
		}
		y += 8
	}
	source := object{"type": "prometheus", "uid": "${datasource}"}
	return object{
		"uid": "stampede", "title": "stampede", "tags": []string{"stampede", "cache"}, "schemaVersion": 39, "version": 1,
		"editable": true, "graphTooltip": 1, "refresh": "10s", "timezone": "browser",
		"time":        object{"from": "now-30m", "to": "now"},
		"description": "Guards, stores and budgets of github.com/stampedeguard/stampede. Generated: see internal/cmd/dashboard.",
		"templating": object{"list": []object{
			{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0},
			{
				"name": "guard", "label": "Guard", "type": "query", "datasource": source, "refresh": 2, "multi": true, "includeAll": true,
				"allValue": ".*", "query": "label_values(stampede_requests_total, stampede_guard_name)",
				"current": object{"text": "All", "value": "$__all"},
			},
		}},
		"panels": panels,
	}
}

func (p panel) model(id, x, y, w int) object {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var targets []object
	for i, q := range p.queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "expr": q.expr, "legendFormat": q.legend, "datasource": source, "range": true,
		})
	}
	custom := object{"fillOpacity": 10, "showPoints": "never"}
	if p.stacked {
		custom["fillOpacity"] = 40
		custom["stacking"] = object{"mode": "normal", "group": "A"}
	}
	return object{
		"id": id, "type": "timeseries", "title": p.title, "description": p.text, "datasource": source,
		"gridPos":     object{"x": x, "y": y, "w": w, "h": 8},
		"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0, "custom": custom}, "overrides": []any{}},
		"options": object{
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		},
		"targets": targets,
	}
}
