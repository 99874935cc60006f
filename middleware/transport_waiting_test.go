package middleware_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/redistest"
	"github.com/stampedeguard/stampede/middleware"
)

// A payingFleet is two processes in a bubble, whose calls are paid from one budget.
type payingFleet struct {
	*testing.T
	rts    [2]*middleware.Transport
	budget *budget.Budget
	calls  []string // paths
}

// withBudget runs a test in fake time. Each answer is what control says, with the
// path as its body.
func withBudget(t *testing.T, l budget.Limit, control string, test func(f *payingFleet), change ...func(*middleware.TransportOptions)) {
	synctest.Test(t, func(t *testing.T) {
		f := &payingFleet{T: t}
		var mu sync.Mutex
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			f.calls = append(f.calls, r.URL.Path)
			return &http.Response{
				StatusCode: 200, Header: http.Header{"Cache-Control": {control}, "Etag": {`"1"`}},
				Body: io.NopCloser(strings.NewReader(r.URL.Path)), ContentLength: -1, Request: r,
			}, nil
		})
		var err error
		if f.budget, err = budget.New(redistest.RunEmbeddedInMemory(t).Client(), "vendor", l); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.budget.Close() })
		store, err := cache.NewMemory(cache.MemoryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		for i := range f.rts {
			s := store.Join()
			t.Cleanup(func() { _ = s.Close() })
			f.rts[i] = newTransport(t, s, append([]func(*middleware.TransportOptions){func(o *middleware.TransportOptions) {
				o.Base, o.Budget, o.MaxBudgetWait = base, f.budget, time.Minute
			}}, change...)...)
		}
		test(f)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// get asks within a time, and returns what came of it.
func (f *payingFleet) get(process int, path string, within time.Duration, header ...string) (answered, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://vendor.test"+path, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := f.rts[process].RoundTrip(req)
	if err != nil {
		return answered{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answered{resp, string(body), err}, nil
}

func every(d time.Duration) budget.Limit { return budget.Limit{Rate: 1, Per: d, Reserve: -1} }

// The time that a call waits for its budget is no part of its response's age.
func TestTransportCountsNoWaitForABudgetAsAge(t *testing.T) {
	withBudget(t, every(10*time.Second), "max-age=5", func(f *payingFleet) {
		for _, path := range []string{"/1", "/2"} {
			a, err := f.get(0, path, time.Minute)
			if err != nil {
				f.Fatal(err)
			}
			wantAnswer(f, a, 200, path)
		}
		synctest.Wait()
		a, err := f.get(1, "/2", time.Second)
		if err != nil {
			f.Fatal(err)
		}
		wantAnswer(f, a, 200, "/2")
		wantCacheStatus(f, a, ";hit;ttl=5")
	})
}
