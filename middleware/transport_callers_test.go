package middleware_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stampedeguard/stampede/middleware"
)

// A Key that leaves out what it takes for noise leaves out no credentials.
func TestTransportKeysWithCredentialsOfTheURLWhateverKeySays(t *testing.T) {
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=60")
		fmt.Fprint(w, "for ", r.URL.Query().Get("api_key"), r.URL.Query().Get("sig"))
	})
	tr := newTransport(t, memoryFleet(t)(), func(o *middleware.TransportOptions) {
		o.Key = func(r *http.Request) string { return r.URL.Path }
	})
	for range 2 {
		for _, who := range []string{"ann", "bob"} {
			wantAnswer(t, ask(t, tr, v.URL+"/me?utm=1&api_key="+who), 200, "for "+who)
			wantAnswer(t, ask(t, tr, v.URL+"/me?s%69g="+who), 200, "for "+who)
		}
	}
	v.wantCalls(t, 4)
	wantCacheStatus(t, ask(t, tr, v.URL+"/me?api_key=ann&utm=2"), ";hit")
	v.wantCalls(t, 4)
}
