package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stampedeguard/stampede/lock"
)

func TestLocksAreServedOverHTTP(t *testing.T) {
	backend, err := lock.Files(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(newServer(backend))
	defer s.Close()
	call := func(method, path string, want int) (body struct{ ID string }) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != want {
			t.Fatalf("%s %s: %s, want %d", method, path, resp.Status, want)
		}
		_ = json.NewDecoder(resp.Body).Decode(&body)
		return body
	}
	k := call("POST", "/n?ttl=1m", http.StatusCreated)
	call("POST", "/n?wait=5ms", http.StatusConflict)
	call("PUT", fmt.Sprintf("/n?id=%s&ttl=2m", k.ID), http.StatusOK)
	if got := call("GET", "/n", http.StatusOK); got.ID != k.ID {
		t.Errorf("the holder is %s, want %s", got.ID, k.ID)
	}
	call("PUT", fmt.Sprintf("/m?id=%s", k.ID), http.StatusGone)
	call("DELETE", fmt.Sprintf("/n?id=%s", k.ID), http.StatusNoContent)
	call("DELETE", fmt.Sprintf("/n?id=%s", k.ID), http.StatusGone)
	call("POST", "/n?ttl=1ms", http.StatusBadRequest)
	call("POST", "/n?ttl=soon", http.StatusBadRequest)
	k = call("POST", "/n", http.StatusCreated)
	call("DELETE", "/n?id="+k.ID, http.StatusNoContent)
}
