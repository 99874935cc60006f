package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// burst is how many calls on top of its limit the vendor's terms allow in any
	// time. vendorBurst is how many it bears: evenly sent calls don't arrive evenly.
	burst       = 5
	vendorBurst = 10
	// vendorTakes is how long it takes to answer.
	vendorTakes = 50 * time.Millisecond
	// price of a call that it answers, in cents.
	price = 2
)

// A vendor answers so many calls a second, and rejects others with 429. It counts
// calls, and has a price for those that it answers.
type vendor struct {
	limit int
	web   http.Server
	url   string

	mu       sync.Mutex
	level    float64 // calls that were answered and have not leaked since
	last     time.Time
	calls    int
	rejected int
}

func openVendor(limit int) (*vendor, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the vendor can't listen: %w", err)
	}
	v := &vendor{limit: limit, url: "http://" + l.Addr().String()}
	v.web.Handler = v
	go func() { // ends with close
		if err := v.web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(err)
		}
	}()
	return v, nil
}

func (v *vendor) close() { _ = v.web.Close() }

func (v *vendor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	left, wait := v.count(time.Now())
	w.Header().Set("X-RateLimit-Limit", strconv.Itoa(vendorBurst))
	w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(max(left, 0)))
	if left < 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	select {
	case <-time.After(vendorTakes):
		fmt.Fprintf(w, "%s at %s", r.URL.Path, time.Now().Format(time.TimeOnly))
	case <-r.Context().Done():
	}
}

// count notes a call. If the call is rejected, left is -1 and wait the time until it
// would be answered.
func (v *vendor) count(now time.Time) (left int, wait time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.calls++
	v.level = max(0, v.level-now.Sub(v.last).Seconds()*float64(v.limit))
	v.last = now
	if over := v.level + 1 - vendorBurst; over > 0 {
		v.rejected++
		return -1, time.Duration(over / float64(v.limit) * float64(time.Second))
	}
	v.level++
	return int(vendorBurst - v.level), 0
}

// counted returns the counts so far.
func (v *vendor) counted() (calls, rejected int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.calls, v.rejected
}
