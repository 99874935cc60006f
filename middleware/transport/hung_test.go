package transport_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware/transport"
)

// An upstream in trouble may send the header of its failure and no end of the body. Such a
// body holds up neither the next attempt nor the stale page.
func TestHungFailureHoldsUpNoStalePage(t *testing.T) {
	for _, says := range []string{"max-age=0, stale-if-error=600", "max-age=1, stale-if-error=600"} {
		for _, retries := range []int{0, 2} {
			t.Run(fmt.Sprint(says, " retries ", retries), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var calls atomic.Int32
					tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
						o.Retry.Max = retries
						o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
							resp := &http.Response{StatusCode: 200, Header: http.Header{"Cache-Control": {says}, "Etag": {`"a"`}}, ContentLength: -1, Request: r}
							resp.Body = io.NopCloser(strings.NewReader("page"))
							if calls.Add(1) > 1 {
								resp.StatusCode = http.StatusServiceUnavailable
								resp.Body, _ = io.Pipe()
							}
							return resp, nil
						})
					})
					wantAnswer(t, ask(t, tr, "http://a.example/"), 200, "page")
					time.Sleep(2 * time.Second)
					start := time.Now()
					wantAnswer(t, ask(t, tr, "http://a.example/"), 200, "page")
					if took := time.Since(start); took > 2*time.Second {
						t.Errorf("after %v", took)
					}
					if want := int32(2 + retries); calls.Load() != want {
						t.Errorf("%d calls, want %d", calls.Load(), want)
					}
				})
			})
		}
	}
}
