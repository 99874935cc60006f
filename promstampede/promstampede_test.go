package promstampede_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/promstampede"
)

func TestCollectorReportsGuardsAndStores(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	metrics := promstampede.New()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics)
	store, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "app", Observer: metrics})
	if err != nil {
		t.Fatal(err)
	}
	g, err := guard.New[string](store, "users", guard.Policy{TTL: time.Minute, Observer: metrics})
	if err != nil {
		t.Fatal(err)
	}
	quota, err := budget.New(server.Client(), "quota", budget.Limit{Rate: 10, Per: time.Second}, budget.Options{Namespace: "app", Observer: metrics})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close(); _ = store.Close(); _ = quota.Close() }()
	_, _ = g.Get(t.Context(), "k", func(context.Context) (string, error) { return "v", nil })
	_, _ = g.Get(t.Context(), "k", func(context.Context) (string, error) { return "v", nil })
	_, _ = g.Get(t.Context(), "bad\xff", func(context.Context) (string, error) { return "", errors.New("no\xff") })
	for !store.Nodes()[0].Subscribed {
		time.Sleep(time.Millisecond)
	}
	want := `
# HELP stampede_requests_total Calls for a key, by the source of the value or the type of the error.
# TYPE stampede_requests_total counter
`
	for _, line := range []string{
		`budget_exhausted"} 0`, `canceled"} 0`, `closed"} 0`, `fetch"} 1`, `fetch_timeout"} 0`, `not_found"} 0`, `other"} 0`, `panic"} 0`,
		`quarantined"} 0`, `remote"} 0`, `unavailable"} 0`, `wait_timeout"} 0`,
	} {
		want += `stampede_requests_total{error_type="` + strings.Replace(line, `"}`, `",stampede_guard_name="users",stampede_source=""}`, 1) + "\n"
	}
	for _, line := range []string{`near"} 0`, `own_fetch"} 1`, `reserve"} 0`, `shared_fetch"} 0`, `stale"} 0`, `store"} 1`, `unguarded"} 0`} {
		want += `stampede_requests_total{error_type="",stampede_guard_name="users",stampede_source="` + line + "\n"
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "stampede_requests_total"); err != nil {
		t.Error(err)
	}
	for name, least := range map[string]int{
		"stampede_fetch_duration_seconds": 2, "stampede_entry_size_bytes": 1, "stampede_store_breaker_status": 2,
		"stampede_store_subscription_status": 2, "stampede_lease_requests_total": 7, "stampede_fetch_active": 1, "stampede_budget_limit": 1,
	} {
		if n, err := testutil.GatherAndCount(registry, name); err != nil || n < least {
			t.Errorf("%s has %d series, want %d or more; error %v", name, n, least, err)
		}
	}
}

func TestCollectorPassesPrometheusLint(t *testing.T) {
	problems, err := testutil.CollectAndLint(promstampede.New())
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, error %v", problems, err)
	}
}
