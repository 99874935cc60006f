package main

import (
	"net/http"
	"net/http/httputil"
	"strconv"
)

// hops obeys Max-Forwards (RFC 9110, 7.6.2), by which a client of TRACE and OPTIONS
// says how many proxies its request is to pass: the last one answers it.
func hops(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodTrace && r.Method != http.MethodOptions {
			next.ServeHTTP(w, r)
			return
		}
		n, err := strconv.ParseUint(r.Header.Get("Max-Forwards"), 10, 31)
		switch {
		case err != nil:
			next.ServeHTTP(w, r)
		case n > 0:
			r = r.Clone(r.Context())
			r.Header.Set("Max-Forwards", strconv.FormatUint(n-1, 10))
			next.ServeHTTP(w, r)
		case r.Method == http.MethodTrace:
			reflect(w, r)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
}

// reflect answers TRACE with the received message, but for fields that identify the client
// (RFC 9110, 9.3.8).
func reflect(w http.ResponseWriter, r *http.Request) {
	r = r.Clone(r.Context())
	for _, name := range []string{"Authorization", "Cookie", "Proxy-Authorization"} {
		r.Header.Del(name)
	}
	text, err := httputil.DumpRequest(r, false)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "message/http")
	_, _ = w.Write(text)
}
