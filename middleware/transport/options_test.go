package transport_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// A paying is a budget without limits that counts.
type paying struct{ calls atomic.Int32 }

func (p *paying) Spend(context.Context, guard.Spending) (guard.Expense, error) {
	p.calls.Add(1)
	return p, nil
}
func (*paying) Settle(int)                    {}
func (*paying) Exhausted(guard.Priority) bool { return false }
func (*paying) Known() guard.BudgetState      { return guard.BudgetState{} }

func TestHostsInheritFieldsThatAreNotSet(t *testing.T) {
	for name, c := range map[string]struct {
		own      transport.HostPolicy
		attempts int64 // at an upstream that fails
	}{
		"nothing set": {transport.HostPolicy{}, 3},
		"no retries":  {transport.HostPolicy{Retry: transport.Retry{Max: -1}}, 1},
		"one retry":   {transport.HostPolicy{TTL: guard.Off, Retry: transport.Retry{Max: 1}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/fails" {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				fmt.Fprint(w, "page")
			})
			budget := &paying{}
			tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
				o.TTL, o.Budget = time.Minute, budget
				o.Retry = transport.Retry{Max: 2, Base: time.Millisecond}
				o.Hosts = map[string]transport.HostPolicy{transport.HostOf(mustRequest(t, v.URL).URL): c.own}
			})
			ask(t, tr, v.URL+"/fails")
			v.wantCalls(t, c.attempts)
			if n := int64(budget.calls.Load()); n != c.attempts {
				t.Errorf("the budget paid for %d calls, want %d", n, c.attempts)
			}
			ask(t, tr, v.URL)
			waitUntil(t, func() bool { return len(tr.Stats().InFlight) == 0 })
			ask(t, tr, v.URL)
			want := c.attempts + 1
			if c.own.TTL == guard.Off {
				want++
			}
			v.wantCalls(t, want)
		})
	}
}
