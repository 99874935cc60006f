package transport_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// exampleAPI is an upstream that prints its calls.
func exampleAPI() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("upstream:", r.Method, r.URL.Path)
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, "1.08")
	}))
}

// exampleGet makes a request and prints the response's body.
func exampleGet(client *http.Client, url string) {
	resp, err := client.Get(url)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(string(body), err)
}

func ExampleNew() {
	api := exampleAPI()
	defer api.Close()
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	rt, err := transport.New(store, transport.Options{
		HostPolicy: transport.HostPolicy{
			StaleIfError: time.Hour,
			Retry:        transport.Retry{Max: 2},
		},
		Hosts: map[string]transport.HostPolicy{
			"slow.example.com": {TTL: time.Hour},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close()

	client := &http.Client{Transport: rt}
	for range 3 {
		exampleGet(client, api.URL+"/EURUSD")
	}
	// Output:
	// upstream: GET /EURUSD
	// 1.08 <nil>
	// 1.08 <nil>
	// 1.08 <nil>
}

// Purge takes the request itself: its URL and credentials name the response.
func ExampleTransport_Purge() {
	api := exampleAPI()
	defer api.Close()
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	rt, err := transport.New(store, transport.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close()

	client := &http.Client{Transport: rt}
	exampleGet(client, api.URL+"/EURUSD")
	req, err := http.NewRequest(http.MethodGet, api.URL+"/EURUSD", nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := rt.Purge(req); err != nil {
		log.Fatal(err)
	}
	exampleGet(client, api.URL+"/EURUSD")
	// Output:
	// upstream: GET /EURUSD
	// 1.08 <nil>
	// upstream: GET /EURUSD
	// 1.08 <nil>
}

// While the upstream fails, clients get the last good response.
func ExampleHostPolicy() {
	var down atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Cache-Control", "max-age=0")
		w.Header().Set("ETag", `"1"`)
		fmt.Fprint(w, "1.08")
	}))
	defer api.Close()
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	rt, err := transport.New(store, transport.Options{
		Hosts: map[string]transport.HostPolicy{
			api.Listener.Addr().String(): {StaleIfError: time.Hour},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close()

	client := &http.Client{Transport: rt}
	exampleGet(client, api.URL)
	down.Store(true)
	exampleGet(client, api.URL)
	// Output:
	// 1.08 <nil>
	// 1.08 <nil>
}
