package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// A behaviour is how the origin treats a fetch: it returns when the answer is
// due, and whether it is a good one. Fetches count from 1.
type behaviour func(ctx context.Context, fetch int, delay time.Duration) bool

func answers(ctx context.Context, _ int, delay time.Duration) bool {
	return pause(ctx, delay)
}

func fails(ctx context.Context, _ int, delay time.Duration) bool {
	pause(ctx, delay)
	return false
}

// firstHangs keeps the first fetch until its client is gone, so that it can't
// be over before its process is killed.
func firstHangs(ctx context.Context, fetch int, delay time.Duration) bool {
	if fetch == 1 {
		<-ctx.Done()
		return false
	}
	return pause(ctx, delay)
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// A fetch is a request that reached the origin.
type fetch struct {
	id      int // from 1, in the order of arrival
	proc    int
	arrived time.Time
	ended   time.Time // when the origin answered; zero if it has not
}

// An origin is the upstream of all fetches: a small slow HTTP server that keeps a
// record of its requests.
type origin struct {
	url     string
	arrived chan fetch // the first fetch

	behave behaviour
	delay  time.Duration
	server *http.Server
	served chan struct{} // closed when the server has ended

	mu      sync.Mutex
	fetches []fetch
}

// startOrigin listens. It speaks HTTP/2 without TLS, so that a thousand fetches
// from one process are a thousand requests and not a thousand connections: the
// figures are of the stampede, and not of the kernel's accept queue.
func startOrigin(addr string, delay time.Duration, behave behaviour) (*origin, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("the origin can't listen on %s: %w", addr, err)
	}
	o := &origin{
		url:     "http://" + listener.Addr().String(),
		arrived: make(chan fetch, 1),
		behave:  behave, delay: delay,
		served: make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /value", o.serve)
	mux.HandleFunc("GET /warm", func(http.ResponseWriter, *http.Request) {})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	o.server = &http.Server{
		Handler:   mux,
		Protocols: protocols,
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: 1 << 20},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	go func() { // ends with close
		defer close(o.served)
		_ = o.server.Serve(listener)
	}()
	return o, nil
}

func (o *origin) close() {
	_ = o.server.Close()
	<-o.served
}

const procHeader = "Stampede-Proc"

func (o *origin) serve(w http.ResponseWriter, r *http.Request) {
	proc, _ := strconv.Atoi(r.Header.Get(procHeader))
	o.mu.Lock()
	f := fetch{id: len(o.fetches) + 1, proc: proc, arrived: time.Now()}
	o.fetches = append(o.fetches, f)
	o.mu.Unlock()
	if f.id == 1 {
		o.arrived <- f
	}
	good := o.behave(r.Context(), f.id, o.delay)
	if r.Context().Err() != nil {
		return
	}
	o.mu.Lock()
	o.fetches[f.id-1].ended = time.Now()
	o.mu.Unlock()
	if !good {
		http.Error(w, "the origin is out of order", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprint(w, f.id)
}

// record returns the fetches so far, in the order of their arrival.
func (o *origin) record() []fetch {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.fetches)
}

func (o *origin) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.fetches)
}
