package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v2"
)

const (
	rulesFile     = "../../dashboards/stampede.rules.yml"
	dashboardFile = "../../dashboards/stampede.json"
)

// A promServer scrapes the example each second.
type promServer struct {
	t   *testing.T
	url string
}

func startPrometheus(t *testing.T, targets []string) *promServer {
	t.Helper()
	binary, dir := tool(t, "prometheus"), t.TempDir()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: { scrape_interval: 1s, evaluation_interval: 1s }\nrule_files: [%q]\n"+
		"scrape_configs: [{ job_name: stampede, static_configs: [{ targets: [%q, %q] }] }]\n", rules, targets[0], targets[1])
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	addr, err := freeAddress(0)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "--config.file="+file, "--storage.tsdb.path="+dir, "--web.listen-address="+addr, "--log.level=error")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &promServer{t, "http://" + addr}
}

// query returns the number of series, and the error of a query that cannot be answered.
func (p *promServer) query(expr string) (series int, err error) {
	r, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Body.Close() }()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s", answer.Error)
	}
	for _, s := range answer.Data.Result {
		if s.Value[1] != "NaN" {
			series++
		}
	}
	return series, nil
}

// An expression is a query of the dashboard, or a rule.
type expression struct{ name, expr string }

func dashboardQueries(t *testing.T) (all []expression) {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, RefID string }
		}
	}
	b, err := os.ReadFile(dashboardFile)
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$__rate_interval", "30s", "$guard", ".*")
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all = append(all, expression{p.Title + " " + q.RefID, fill.Replace(q.Expr)})
		}
	}
	if len(all) < 20 {
		t.Fatalf("the dashboard has only %d queries", len(all))
	}
	return all
}

func rules(t *testing.T) (records []expression, alerts map[string]string) {
	t.Helper()
	var f struct {
		Groups []struct {
			Rules []struct{ Record, Alert, Expr string }
		}
	}
	b, err := os.ReadFile(rulesFile)
	if err == nil {
		err = yaml.Unmarshal(b, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	alerts = map[string]string{}
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			if r.Record != "" {
				records = append(records, expression{r.Record, r.Record})
			} else {
				alerts[r.Alert] = r.Expr
			}
		}
	}
	return records, alerts
}

func TestRulesAreValid(t *testing.T) {
	if out, err := exec.Command(tool(t, "promtool"), "check", "rules", rulesFile).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDashboardAndAlertsHaveData(t *testing.T) {
	p := start(t)
	prom := startPrometheus(t, p.addrs)
	queries := dashboardQueries(t)
	records, alerts := rules(t)
	queries = append(queries, records...)
	answered := map[string]bool{}
	look := func() {
		for _, q := range queries {
			if answered[q.name] {
				continue
			}
			if n, err := prom.query(q.expr); err == nil && n > 0 {
				answered[q.name] = true
			}
		}
	}
	fires := func(alert string) bool {
		n, err := prom.query(alerts[alert])
		return err == nil && n > 0
	}
	const atMost = 2 * time.Minute

	p.await("data of a first scrape", atMost, func() bool { n, err := prom.query("stampede:hit_ratio:rate5m"); return err == nil && n > 0 })
	p.await("a wait that links to a fetch in the other process", atMost, func() bool { return p.printed("^trace .* links to span") != "" })
	look()
	for alert := range alerts {
		if alert != "StampedeSlowWaits" && alert != "StampedeBudgetExhausted" && fires(alert) { // a machine may be slow
			t.Errorf("%s fires in the normal scenario", alert)
		}
	}
	for _, step := range []struct {
		scenario string
		alerts   []string
	}{
		{failing, []string{"StampedeSlowWaits", "StampedeBudgetExhausted"}},
		{noRedis, []string{"StampedeBreakerOpen", "StampedeUnguardedFetches", "StampedeNearCacheBypassed"}},
		{dying, []string{"StampedeKeysQuarantined", "StampedeTakeovers"}},
	} {
		p.play(step.scenario)
		for _, alert := range step.alerts {
			if alerts[alert] == "" {
				t.Fatalf("there is no alert %s", alert)
			}
			p.await(alert+" in scenario "+step.scenario, atMost, func() bool { look(); return fires(alert) })
			delete(alerts, alert)
			t.Logf("%s has data in scenario %s", alert, step.scenario)
		}
	}
	if len(alerts) > 0 {
		t.Errorf("no scenario makes these fire: %v", alerts)
	}
	p.play(normal)
	for end := time.Now().Add(30 * time.Second); len(answered) < len(queries) && time.Now().Before(end); time.Sleep(time.Second) {
		look()
	}
	for _, q := range queries {
		if !answered[q.name] {
			_, err := prom.query(q.expr)
			t.Errorf("%s has no data in any scenario: %s (error %v)", q.name, q.expr, err)
		}
	}
	t.Logf("%d queries of the dashboard and %d recording rules have data", len(queries)-len(records), len(records))
}
