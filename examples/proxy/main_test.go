package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// start starts a proxy in front of a handler, and returns its address.
func start(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	upstream := httptest.NewServer(h)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c, err := parse([]string{"-upstream", upstream.URL, "-via", "proxy"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		upstream.Close()
	})
	return l.Addr().String()
}

func TestProxyStoresAndForwards(t *testing.T) {
	var runs atomic.Int32
	addr := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprintf(w, "run %d, %s, via %s, te %s, upgrade %s", runs.Add(1), r.Header.Get("X-Any"), r.Header.Get("Via"), r.Header.Get("Te"), r.Header.Get("Keep-Alive"))
		w.Header().Set("X-Sum", "42")
	})
	for _, h2c := range []bool{false, true} {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(!h2c)
		tr.Protocols.SetUnencryptedHTTP2(h2c)
		client := &http.Client{Transport: tr}
		for range 2 {
			req, _ := http.NewRequest("GET", "http://"+addr+"/", nil)
			req.Header.Set("X-Any", "header")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || string(body) != "run 1, header, via 1.1 proxy, te , upgrade " {
				t.Errorf("%q, %v", body, err)
			}
			if resp.Header.Get("X-Hop") != "" || !strings.Contains(resp.Header.Get("Via"), "1.1 proxy") || resp.Trailer.Get("X-Sum") != "42" {
				t.Errorf("%v, %v", resp.Header, resp.Trailer)
			}
			if want := map[bool]int{false: 1, true: 2}[h2c]; resp.ProtoMajor != want {
				t.Errorf("HTTP/%d", resp.ProtoMajor)
			}
		}
		tr.CloseIdleConnections()
	}
}

func TestProxyPassesInformationalResponses(t *testing.T) {
	addr := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a>; rel=preload")
		w.WriteHeader(103)
		fmt.Fprint(w, "body")
	})
	var codes []int
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
		codes = append(codes, code)
		return nil
	}})
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/", nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); string(body) != "body" || len(codes) != 1 || codes[0] != 103 {
		t.Errorf("%q, %v", body, codes)
	}
}

func TestProxyPassesUpgrades(t *testing.T) {
	addr := start(t, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, "you said ", line)
		rw.Flush()
	})
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	b := bufio.NewReader(conn)
	resp, err := http.ReadResponse(b, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	defer resp.Body.Close()
	fmt.Fprintln(conn, "hello")
	if line, _ := b.ReadString('\n'); line != "you said hello\n" {
		t.Errorf("%q", line)
	}
}

// A response that breaks off is no page.
func TestProxyStoresNoBrokenResponse(t *testing.T) {
	var runs atomic.Int32
	addr := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		if runs.Add(1) == 1 {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "whole")
	})
	get := func() (string, error) {
		resp, err := http.Get("http://" + addr + "/")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	if body, err := get(); err == nil {
		t.Errorf("%q", body)
	}
	// A request that comes before the proxy is done with the broken response waits for it, and
	// gets its error.
	body, err := get()
	for err == nil && strings.Contains(body, "waited for") {
		body, err = get()
	}
	if err != nil || body != "whole" {
		t.Errorf("%q, %v", body, err)
	}
}
