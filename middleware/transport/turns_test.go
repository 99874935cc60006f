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

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/middleware/transport"
)

func textResponse(r *http.Request, control, body string) *http.Response {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Cache-Control": {control}},
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: -1, Request: r,
	}
}

func TestPurgedCallStillAnswersItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var calls atomic.Int32
		tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
			o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				calls.Add(1)
				select {
				case <-release:
					return textResponse(r, "max-age=60", "page"), nil
				case <-r.Context().Done():
					return nil, context.Cause(r.Context())
				}
			})
		})
		var wg sync.WaitGroup
		wg.Go(func() { wantAnswer(t, ask(t, tr, "http://vendor.test/"), 200, "page") })
		synctest.Wait()
		if err := tr.Purge(mustRequest(t, "http://vendor.test/")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(release)
		wg.Wait()
		wantAnswer(t, ask(t, tr, "http://vendor.test/"), 200, "page")
		if calls.Load() != 2 {
			t.Errorf("%d calls, want 2: a response from before the purge was stored", calls.Load())
		}
	})
}

// A response to a request's own validation has no lease. A purge during it has to win.
func TestPurgeDuringAValidationWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var calls atomic.Int32
		tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
			o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				resp := textResponse(r, "max-age=0, stale-if-error=600", "old")
				switch calls.Add(1) {
				case 1:
					resp.Header.Set("ETag", `"1"`)
				case 2:
					<-release
					resp.Header.Set("ETag", `"2"`)
				default:
					resp.StatusCode = http.StatusServiceUnavailable
				}
				return resp, nil
			})
		})
		wantAnswer(t, ask(t, tr, "http://vendor.test/"), 200, "old")
		synctest.Wait()
		var wg sync.WaitGroup
		wg.Go(func() { wantAnswer(t, ask(t, tr, "http://vendor.test/"), 200, "old") })
		synctest.Wait()
		purge(t, tr, "http://vendor.test/")
		close(release)
		wg.Wait()
		synctest.Wait()
		if a := ask(t, tr, "http://vendor.test/"); a.StatusCode != 503 {
			t.Errorf("got %d %q from before the purge; Cache-Status: %s", a.StatusCode, a.body, a.cacheStatus())
		}
	})
}

func TestPurgedCallEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
			o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				ended <- context.Cause(r.Context())
				return nil, context.Cause(r.Context())
			})
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if resp, err := tr.RoundTrip(mustRequest(t, "http://vendor.test/").WithContext(ctx)); err == nil {
				_ = resp.Body.Close()
			}
		}()
		synctest.Wait()
		_ = tr.Purge(mustRequest(t, "http://vendor.test/"))
		synctest.Wait()
		if len(ended) > 0 {
			t.Error("the call ended while its client waited")
		}
		cancel()
		synctest.Wait()
		if len(ended) == 0 {
			t.Error("the call goes on without a waiter")
		}
	})
}

func TestHungBaseEndsNeitherRequestsNorClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		var calls atomic.Int32
		tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
			o.FetchTimeout = time.Second
			o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				if calls.Add(1) > 1 {
					<-release
				}
				return textResponse(r, "max-age=1, stale-while-revalidate=600", "page"), nil
			})
		})
		ask(t, tr, "http://vendor.test/")
		if err := failing(t, tr, http.MethodGet, "http://vendor.test/other"); !errors.Is(err, guard.ErrFetchTimeout) {
			t.Errorf("a request got %v", err)
		}
		time.Sleep(time.Second)
		ask(t, tr, "http://vendor.test/") // refreshes
		synctest.Wait()
		start := time.Now()
		if err := tr.Close(); err != nil || time.Since(start) > time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestPanicOfTheBaseIsTheRequestsError(t *testing.T) {
	tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
		o.Base = roundTripper(func(r *http.Request) (*http.Response, error) { panic("boom") })
	})
	var panicked *guard.PanicError
	if err := failing(t, tr, http.MethodGet, "http://vendor.test/"); !errors.As(err, &panicked) || panicked.Value != "boom" {
		t.Errorf("got %v", err)
	}
}

func TestPanicOfABodyEndsIt(t *testing.T) {
	for _, control := range []string{"max-age=60", "no-cache"} { // in a call for all, and in a validation
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int32
			tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
				o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
					resp := textResponse(r, control, "whole")
					resp.Header.Set("ETag", fmt.Sprintf("%q", fmt.Sprint(calls.Add(1))))
					if control == "max-age=60" || calls.Load() > 1 {
						resp.Body = io.NopCloser(io.MultiReader(strings.NewReader("part"), panicking{}))
					}
					return resp, nil
				})
			})
			if control == "no-cache" {
				wantAnswer(t, ask(t, tr, "http://vendor.test/"), 200, "whole")
				synctest.Wait()
			}
			if a := ask(t, tr, "http://vendor.test/"); a.err == nil {
				t.Errorf("%s: read %q to its end", control, a.body)
			}
			synctest.Wait()
		})
	}
}

type panicking struct{}

// Read implements [io.Reader].
func (panicking) Read([]byte) (int, error) { panic("boom") }
