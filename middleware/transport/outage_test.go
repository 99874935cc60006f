package transport_test

import (
	"fmt"
	"net/http"
	"testing"
)

func TestResponsesOutliveRedis(t *testing.T) {
	open, server := redisFleet(t)
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, r.Method, r.URL.Path)
	})
	tr := newTransport(t, open())
	url := v.URL + "/a"
	for tr.Stats().ReserveEntries == 0 { // until the process hears of changes
		if a := ask(t, tr, url); a.body != "GET/a" {
			t.Fatalf("the body is %q", a.body)
		}
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	before := v.calls.Load()
	for range 10 {
		if a := ask(t, tr, url); a.body != "GET/a" {
			t.Errorf("the body is %q", a.body)
		}
	}
	v.wantCalls(t, before)
	askWith(t, tr, http.MethodPost, url) // invalidates the response, whether Redis answers or not
	ask(t, tr, url)
	v.wantCalls(t, before+2)
}
