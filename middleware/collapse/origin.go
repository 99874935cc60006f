package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// An origin serves the pages of the cases.
type origin struct {
	listener net.Listener
	server   *http.Server
	mu       sync.Mutex
	pages    map[string]*page
}

func serve(listen string) (*origin, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	o := &origin{listener: l, pages: map[string]*page{}}
	o.server = &http.Server{Handler: o, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	go func() { _ = o.server.Serve(l) }()
	return o, nil
}

func (o *origin) addr() string { return o.listener.Addr().String() }

func (o *origin) close() {
	_ = o.server.Close()
	_ = o.listener.Close() // the server may not know it yet
}

func (o *origin) add(path string, h func(*writer, int)) *page {
	p := &page{path: path, handler: h}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pages[path] = p
	return p
}

// ServeHTTP implements [http.Handler].
func (o *origin) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	o.mu.Lock()
	p := o.pages[req.URL.Path]
	o.mu.Unlock()
	if p == nil {
		http.NotFound(w, req)
		return
	}
	_, _ = io.Copy(io.Discard, req.Body)
	p.handler(&writer{ResponseWriter: w, req: req}, p.arrive(req))
}

// A page is a URL of the origin.
type page struct {
	path    string
	handler func(w *writer, n int) // n counts the arrivals, from 1

	mu       sync.Mutex
	arrivals int
}

func (p *page) arrive(*http.Request) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrivals++
	return p.arrivals
}

// count is the number of requests that have arrived.
func (p *page) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.arrivals
}

// forget starts the count anew.
func (p *page) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrivals = 0
}

// A writer writes a response of the origin.
type writer struct {
	http.ResponseWriter
	req *http.Request
}

// say sets fields of the header: "Name: value".
func (w *writer) say(lines ...string) *writer {
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		w.Header().Set(name, value)
	}
	return w
}

// text writes a part of the body and sends it.
func (w *writer) text(format string, args ...any) *writer {
	_, _ = fmt.Fprintf(w, format, args...)
	return w.send()
}

// send sends the bytes that were written.
func (w *writer) send() *writer {
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	return w
}

// crash ends the connection.
func (w *writer) crash() { panic(http.ErrAbortHandler) }

// asks returns a field of the request.
func (w *writer) asks(name string) string { return w.req.Header.Get(name) }
