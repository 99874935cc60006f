package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// A payingFleet is two processes in a bubble. One budget pays for their calls.
type payingFleet struct {
	*testing.T
	rts    [2]*transport.Transport
	budget *budget.Budget
	calls  []string // paths
}

// withBudget runs a test in fake time. Each answer is as control says, with the
// path as its body.
func withBudget(t *testing.T, l budget.Limit, control string, test func(f *payingFleet), change ...func(*transport.Options)) {
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
		if f.budget, err = budget.New(redistest.RunEmbeddedInMemory(t).Client(), "vendor", l, budget.Options{Namespace: "test"}); err != nil {
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
			f.rts[i] = newTransport(t, s, append([]func(*transport.Options){func(o *transport.Options) {
				o.Base, o.Budget, o.MaxBudgetWait = base, f.budget, time.Minute
			}}, change...)...)
		}
		test(f)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// get asks within a time, and returns the outcome.
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

// no-cache asks for a call that begins when the request is there, also where a call that
// began before shows that the URL's responses vary.
func TestNoCacheAsksAnewAfterItLearnsOfVary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		header := make(chan struct{})
		firstBody, sendBody := io.Pipe()
		calls := 0
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			calls++
			body := io.NopCloser(strings.NewReader(fmt.Sprint("call ", calls)))
			if calls == 1 {
				<-header
				body = firstBody
			}
			return &http.Response{
				StatusCode: 200, Header: http.Header{"Cache-Control": {"max-age=60"}, "Vary": {"Accept"}},
				Body: body, ContentLength: -1, Request: r,
			}, nil
		})
		a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Base = base })
		var wg sync.WaitGroup
		wg.Go(func() { wantAnswer(t, ask(t, a, "http://vendor.test/"), 200, "call 1") })
		synctest.Wait()
		wg.Go(func() {
			wantAnswer(t, ask(t, a, "http://vendor.test/", "Cache-Control", "no-cache"), 200, "call 2")
		})
		synctest.Wait() // it waits
		close(header)
		synctest.Wait()
		_, err := io.WriteString(sendBody, "call 1")
		if err = errors.Join(err, sendBody.Close()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// The time that a call waits for its budget is no part of its response's age.
func TestCountsNoWaitForABudgetAsAge(t *testing.T) {
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

// A request that can't wait for the next slot is told its time at once.
func TestBudgetWaitEndsWithTheRequestsDeadline(t *testing.T) {
	withBudget(t, every(10*time.Second), "max-age=60", func(f *payingFleet) {
		_, _ = f.get(0, "/1", time.Minute)
		start := time.Now()
		_, err := f.get(0, "/2", time.Second)
		exhausted, ok := errors.AsType[*guard.ExhaustedError](err)
		if !ok || exhausted.RetryAfter < 9*time.Second || time.Since(start) > 100*time.Millisecond {
			f.Errorf("got %v after %v", err, time.Since(start))
		}
		// But another's deadline bounds no wait, if that one left.
		got := make(chan error, 2)
		for i, within := range []time.Duration{time.Second, time.Minute} {
			go func() {
				_, err := f.get(i, "/3", within)
				got <- err
			}()
			synctest.Wait() // the request with the short deadline makes the call
		}
		left, stayed := <-got, <-got
		if left == nil || stayed != nil {
			f.Errorf("with a second to wait the error is %v, with a minute %v", left, stayed)
		}
	})
}

// So is one that validates a page for itself.
func TestBudgetWaitOfAValidationEndsWithTheDeadline(t *testing.T) {
	withBudget(t, every(10*time.Second), "no-cache", func(f *payingFleet) {
		_, _ = f.get(0, "/", time.Minute)
		synctest.Wait()
		start := time.Now()
		_, err := f.get(0, "/", time.Second)
		if _, ok := errors.AsType[*guard.ExhaustedError](err); !ok || time.Since(start) > 100*time.Millisecond {
			f.Errorf("got %v after %v", err, time.Since(start))
		}
	})
}

// Nothing is spent for requests that have left.
func TestSpendsNothingForRequestsThatHaveLeft(t *testing.T) {
	withBudget(t, every(time.Second), "max-age=60", func(f *payingFleet) {
		_, _ = f.get(0, "/", time.Minute)
		var wg sync.WaitGroup
		for i := range 20 {
			for process := range 2 {
				ctx, cancel := context.WithCancel(context.Background())
				wg.Go(func() {
					req, _ := http.NewRequestWithContext(ctx, "GET", fmt.Sprint("http://vendor.test/left/", i), nil)
					if resp, err := f.rts[process].RoundTrip(req); err == nil {
						resp.Body.Close()
					}
				})
				time.AfterFunc(500*time.Millisecond, cancel)
			}
		}
		wg.Wait()
		start := time.Now()
		a, err := f.get(1, "/wanted", time.Minute)
		if err != nil {
			f.Fatal(err)
		}
		wantAnswer(f, a, 200, "/wanted")
		if d := time.Since(start); d > 2*time.Second || len(f.calls) != 2 {
			f.Errorf("it came after %v, and %v was called for", d, f.calls)
		}
	})
}

// A refresh waits for nothing and gives way, though its client may not have left
// yet; and a call that others wait for doesn't, though its client has.
func TestRefreshesGiveWayAndCallersDoNot(t *testing.T) {
	l := budget.Limit{Rate: 1, Per: 10 * time.Second, Burst: 10} // Background may use 2 less than Normal
	withBudget(t, l, "max-age=1, stale-while-revalidate=600", func(f *payingFleet) {
		for i := range 7 {
			if _, err := f.get(0, fmt.Sprint("/", i), time.Minute); err != nil {
				f.Fatal(err)
			}
		}
		synctest.Wait()
		time.Sleep(2 * time.Second)
		for i := range 7 {
			if _, err := f.get(i%2, fmt.Sprint("/", i), time.Minute); err != nil {
				f.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(f.calls) > 7 {
			f.Errorf("refreshes took the reserve of other calls: %v", f.calls)
		}
	})
	withBudget(t, every(10*time.Second), "max-age=60", func(f *payingFleet) {
		_, _ = f.get(0, "/1", time.Minute)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://vendor.test/2", nil)
			if resp, err := f.rts[0].RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		})
		synctest.Wait()
		for range 3 {
			wg.Go(func() {
				if a, err := f.get(0, "/2", time.Minute); err != nil || a.body != "/2" {
					f.Errorf("got %q, %v", a.body, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		if len(f.calls) != 2 {
			f.Errorf("called for %v", f.calls)
		}
	})
}

// A call counts as under way for as long as it is, which FetchTimeout bounds only
// where others wait for it.
func TestKeepsACallsSlotUntilItIsOver(t *testing.T) {
	type calling func(ctx context.Context, rt http.RoundTripper, method, path string) *http.Response
	for name, test := range map[string]func(f *payingFleet, call calling, free func() bool){
		"a POST that is answered late": func(f *payingFleet, call calling, free func() bool) {
			time.AfterFunc(2*time.Minute-time.Second, func() {
				if free() {
					f.Error("before its answer a second call was made")
				}
			})
			_ = call(f.Context(), f.rts[0], "POST", "/late").Body.Close()
		},
		"a POST whose body is read for long": func(f *payingFleet, call calling, free func() bool) {
			resp := call(f.Context(), f.rts[0], "POST", "/")
			time.Sleep(2 * time.Minute)
			if free() {
				f.Error("while it was read a second call was made")
			}
			_, _ = io.ReadAll(resp.Body)
			defer resp.Body.Close() // which ends nothing any more
			if !free() {
				f.Error("once it was read its slot wasn't free")
			}
		},
		"a download that was handed to its client": func(f *payingFleet, call calling, free func() bool) {
			resp := call(f.Context(), f.rts[0], "GET", "/open")
			time.Sleep(2 * time.Minute)
			if free() {
				f.Error("while it was open a second call was made")
			}
			_ = resp.Body.Close()
			synctest.Wait()
		},
		"a body that is forgotten, of a context that ends": func(f *payingFleet, call calling, free func() bool) {
			ctx, cancel := context.WithCancel(f.Context())
			_ = call(ctx, f.rts[0], "POST", "/") //nolint:bodyclose // the test is about it
			time.Sleep(2 * time.Minute)
			if free() {
				f.Error("before its context's end a second call was made")
			}
			cancel()
			synctest.Wait()
		},
		"no body": func(f *payingFleet, call calling, free func() bool) {
			_ = call(f.Context(), f.rts[0], "POST", "/none") //nolint:bodyclose // it has none
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := roundTripper(func(r *http.Request) (*http.Response, error) {
				resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("x")), ContentLength: -1, Request: r}
				switch r.URL.Path {
				case "/none":
					resp.Body = http.NoBody
				case "/late":
					time.Sleep(2 * time.Minute)
				case "/open":
					resp.Header.Set("Cache-Control", "max-age=60")
					body, w := io.Pipe()
					resp.Body = body
					context.AfterFunc(r.Context(), func() { _ = w.CloseWithError(context.Cause(r.Context())) })
				}
				return resp, nil
			})
			limit := budget.Limit{Rate: 1000, Per: time.Second, Burst: 1000, MaxInFlight: 1}
			withBudget(t, limit, "", func(f *payingFleet) {
				call := func(ctx context.Context, rt http.RoundTripper, method, path string) *http.Response {
					req, _ := http.NewRequestWithContext(ctx, method, "http://vendor.test"+path, nil)
					resp, err := rt.RoundTrip(req)
					if err != nil {
						f.Fatal(err)
					}
					return resp
				}
				free := func() bool { return failing(f, f.rts[1], "POST", "http://vendor.test/none") == nil }
				test(f, call, free)
				if !free() {
					f.Error("once it was over its slot wasn't free")
				}
			}, func(o *transport.Options) {
				o.Base, o.FetchTimeout, o.MaxBudgetWait = base, time.Second, 0
			})
		})
	}
}

// A request that no stale response will do for waits, though there is one.
func TestRequestThatRefusesStaleWaitsForTheBudget(t *testing.T) {
	withBudget(t, every(10*time.Second), "max-age=1, stale-if-error=600", func(f *payingFleet) {
		_, _ = f.get(0, "/1", time.Minute)
		synctest.Wait()
		time.Sleep(2 * time.Second)
		if a, err := f.get(0, "/1", time.Minute); err != nil || len(f.calls) != 1 {
			f.Errorf("want the stale page, got %v, %v", a.cacheStatus(), err)
		}
		a, err := f.get(0, "/1", time.Minute, "Cache-Control", "no-cache")
		if err != nil || len(f.calls) != 2 {
			f.Errorf("got %v after %d calls, want it to wait", err, len(f.calls))
			return
		}
		wantAnswer(f, a, 200, "/1")
	})
}

func TestSharesUpstreamsSlowerThanTheirTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
			o.TTL = time.Second
			o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				calls.Add(1)
				time.Sleep(3 * time.Second)
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("slow")), ContentLength: -1, Request: r}, nil
			})
		})
		get := func() { ask(t, tr, "http://vendor.test/") }
		atOnce(10, get)
		time.Sleep(time.Second/2 - time.Millisecond) // from then on it may be due early
		if get(); calls.Load() != 1 {
			t.Errorf("%d calls for requests within the TTL, want 1", calls.Load())
		}
		time.Sleep(time.Second/2 + time.Millisecond)
		if get(); calls.Load() != 2 {
			t.Errorf("%d calls after the TTL, want 2", calls.Load())
		}
	})
}

// atOnce calls f n times, and returns when all that follows from it is done.
func atOnce(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(f)
	}
	wg.Wait()
	synctest.Wait()
}
