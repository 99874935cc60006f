package transport_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware/transport"
)

// A request for a page that expired while a refresh was under way waits for that call. The
// failure of the call answers the request, with its status alone.
func TestFailedRefreshAnswersRequestsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		release := make(chan struct{})
		tr := newTransport(t, memoryFleet(t)(), func(o *transport.Options) {
			o.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				resp := &http.Response{StatusCode: 200, Header: http.Header{"Cache-Control": {"max-age=2"}, "Etag": {`"1"`}}, Request: r, ContentLength: -1}
				body := "hello"
				if calls.Add(1) > 1 {
					<-release
					resp.StatusCode, resp.Header, body = 503, http.Header{}, "down"
				}
				time.Sleep(time.Second) // so long that the page is refreshed before it expires
				resp.Body = io.NopCloser(strings.NewReader(body))
				return resp, nil
			})
		})
		get := func() answered { return ask(t, tr, "http://vendor.test/") }
		wantAnswer(t, get(), 200, "hello")
		for calls.Load() == 1 {
			synctest.Wait()
			wantAnswer(t, get(), 200, "hello")
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * time.Second) // it expires
		got := make(chan answered)
		go func() { got <- get() }()
		synctest.Wait()
		close(release)
		a := <-got
		if a.StatusCode != 503 || a.body == "down" || calls.Load() != 2 {
			t.Errorf("got %d %q after %d calls, want 503 and no more than 2 calls", a.StatusCode, a.body, calls.Load())
		}
		wantCacheStatus(t, a, "fwd-status=503", "collapsed")
	})
}
