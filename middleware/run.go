package middleware

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// A run is one run of the handler that may answer several requests. Its goroutine owns
// the turn of a key: it decides at the header about the response, and ends the
// turn when the body is whole. The handler writes into a recording. The client that
// started the run reads along, at its own pace.
//
// A run is private if its response is for that client alone. Its handler is held to the
// client's pace and ends with the client, as without a cache. Nothing is kept.
type run struct {
	m     *Middleware
	next  http.Handler
	asked *asked
	at    slot
	began time.Time // before the handler was called

	turn    *guard.Turn[*httpcache.Page]
	notOver func() bool     // stops the watch of the turn; false: the turn is over
	stale   *httpcache.Page // the handler is asked about it; nil: there is none
	noEpoch bool            // nothing may be stored

	req    *http.Request // the handler gets a copy: changes to that decide nothing
	cancel context.CancelCauseFunc

	rec    *httpcache.Recording
	reader *httpcache.Reader // of the client; nil: the run is a refresh
	client *client           // nil: as reader

	known    *httpcache.Page      // the last page, when the run began; nil: there was none
	knownAge func() time.Duration // its present age in the store

	handlers http.Header // the handler's; it changes until the handler has returned

	// The response. It is set before decide is called.
	status   int // 0: no header yet
	header   http.Header
	headerAt time.Time
	expected int64 // Content-Length, -1 if there is none

	// Set by decide. Only the goroutine that decides and the end of the run use these.
	asksStale  bool // the request asks for a 304
	goesAgain  bool // the handler is to be called again, without conditions
	recording  bool
	passing    bool // the response is for the requests that wait, and not stored
	failure    bool // it is passing because it says that the handler failed
	rfc        rfc9111.Options
	d          rfc9111.Decision
	tags       []string
	ready      chan struct{} // closed when out is set
	out        outcome       // for the client
	ended      chan struct{} // closed when the handler has returned
	publishing sync.Once

	mu       sync.Mutex // guards status until decide, and these
	written  int64
	private  bool
	forWhole bool            // the client waits for the whole, unless the run goes private
	live     *httpcache.Live // the rest of the page, for waiters; nil: none yet
	done     bool
	hijacked bool
	trailer  http.Header
	panicked any // by the handler
	stack    []byte
	aborted  bool
}

// An outcome tells the client of a run its next step.
type outcome struct {
	then     step
	page     *httpcache.Page // with servePage
	stored   bool            // page is
	err      error           // with giveUp
	decision decision
}

// A step is the next one of a run's client.
type step byte

const (
	readAlong step = iota // it reads the run
	servePage             // it is answered from a page
	lookAgain             // another key has its answer
	runAlone              // it needs a run of its own
	giveUp                // the run has failed
)

var (
	errClientGone  = errors.New("middleware: the client has gone")
	errRunTimedOut = errors.New("middleware: the run took longer than FetchTimeout")
	errClosing     = errors.New("middleware: closed")
	errOver        = errors.New("middleware: the handler has returned")
)

// take makes the run the owner of a turn.
func (r *run) take(turn *guard.Turn[*httpcache.Page]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn = turn
	r.notOver = context.AfterFunc(turn.Context(), func() { r.turnOver(context.Cause(turn.Context())) })
}

// tooLong is called after FetchTimeout. If its header has come, the run goes on for its
// client alone. Its key is marked: the next herd would wait in vain as well.
func (r *run) tooLong() {
	r.mu.Lock()
	headless, turn, notOver := r.status == 0, r.turn, r.notOver
	r.mu.Unlock()
	if !notOver() {
		return
	}
	if headless {
		r.publish(outcome{then: giveUp, err: guard.ErrFetchTimeout})
		turn.Fail(guard.ErrFetchTimeout)
		r.cancel(errRunTimedOut)
		return
	}
	defer r.endLive(nil)
	r.publish(outcome{then: readAlong, decision: decision{reason: "timeout"}})
	r.goPrivate()
	if r.hasUsable() {
		turn.Fail(r.pausing(httpcache.ErrUnshared))
		return
	}
	turn.Fill.Private = true
	turn.Store(nil)
}

// turnOver is called when the turn ends without the run's doing: at FetchTimeout, with
// Close, or when the lease is lost and no request waits.
func (r *run) turnOver(why error) {
	r.mu.Lock()
	headless := r.status == 0
	r.mu.Unlock()
	switch {
	case errors.Is(why, guard.ErrClosed):
		r.publish(outcome{then: giveUp, err: why})
		r.endLive(why)
		r.cancel(errClosing)
	case headless && errors.Is(why, guard.ErrFetchTimeout):
		r.publish(outcome{then: giveUp, err: why})
		r.cancel(errRunTimedOut)
	default:
		r.goPrivate()
		r.endLive(nil)
	}
}

// serve calls the handler. It recovers the handler's panic, and leaves its Goexit to end.
func (r *run) serve() {
	returned := false
	defer func() {
		if returned {
			return
		}
		p := recover() // nil: the handler called runtime.Goexit
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.aborted = true; p != nil {
			r.panicked, r.stack = p, debug.Stack()
		}
	}()
	r.next.ServeHTTP(r, r.req.Clone(r.req.Context()))
	if r.req.Context().Err() == nil {
		_ = r.commit(http.StatusOK)
	}
	returned = true
}

// goAgain prepares another call of the handler, without conditions, if the 304 of the last
// one was about another response.
func (r *run) goAgain() bool {
	if !r.goesAgain {
		return false
	}
	r.goesAgain, r.asksStale, r.stale = false, false, nil
	rfc9111.RemoveConditions(r.req.Header)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status, r.handlers, r.expected = 0, http.Header{}, -1
	return r.req.Context().Err() == nil && !r.aborted
}

// Header implements [http.ResponseWriter].
func (r *run) Header() http.Header { return r.handlers }

// WriteHeader implements [http.ResponseWriter]. Informational responses go to the client
// at once.
func (r *run) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic("middleware: invalid WriteHeader code " + strconv.Itoa(status))
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		r.client.inform(status, r.handlers)
		return
	}
	_ = r.commit(status)
}

// commit takes the header as it is now, if there is none yet, and decides. It returns an
// error if the handler may not write any more.
func (r *run) commit(status int) error {
	r.mu.Lock()
	switch {
	case r.hijacked:
		r.mu.Unlock()
		return http.ErrHijacked
	case r.done:
		r.mu.Unlock()
		return errOver
	case r.status != 0:
		r.mu.Unlock()
		return nil
	}
	r.status, r.headerAt = status, time.Now()
	r.header = httpcache.CanonicalHeader(r.handlers)
	for name := range r.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			delete(r.header, name)
		}
	}
	if lines := r.header["Content-Length"]; len(lines) > 0 {
		n, err := strconv.ParseInt(lines[0], 10, 64)
		if len(lines) > 1 || err != nil || n < 0 {
			delete(r.header, "Content-Length") // as net/http does
		} else {
			r.expected = n
		}
	}
	r.mu.Unlock()
	r.decide()
	return nil
}

// Write implements [http.ResponseWriter].
func (r *run) Write(p []byte) (int, error) {
	if err := r.commit(http.StatusOK); err != nil {
		return 0, err
	}
	if !httpcache.BodyAllowed(r.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if !r.count(len(p)) {
		return 0, http.ErrContentLength
	}
	if !r.rec.Fits(len(p)) {
		r.tooLarge()
	}
	n, err := r.rec.Write(p)
	r.count(n - len(p))
	return n, err
}

// count adds to the bytes that were written. It returns false if they are more than
// Content-Length.
func (r *run) count(n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.expected >= 0 && r.written+int64(n) > r.expected {
		return false
	}
	r.written += int64(n)
	return true
}

// Flush implements [http.Flusher].
func (r *run) Flush() { _ = r.FlushError() }

// FlushError is called by [http.ResponseController].
func (r *run) FlushError() error {
	if err := r.commit(http.StatusOK); err != nil {
		return err
	}
	return r.rec.Flush()
}

// SetReadDeadline sets that of the client's connection, which holds up no other request.
func (r *run) SetReadDeadline(t time.Time) error {
	return r.client.control(func(c *http.ResponseController) error { return c.SetReadDeadline(t) })
}

// SetWriteDeadline sets that of the client's connection.
func (r *run) SetWriteDeadline(t time.Time) error {
	return r.client.control(func(c *http.ResponseController) error { return c.SetWriteDeadline(t) })
}

// EnableFullDuplex is called by [http.ResponseController]: a run has no request body.
func (r *run) EnableFullDuplex() error { return nil }

// Hijack implements [http.Hijacker]: the connection is that of the run's client.
func (r *run) Hijack() (conn net.Conn, rw *bufio.ReadWriter, err error) {
	err = r.client.control(func(c *http.ResponseController) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.status != 0 || r.hijacked || r.done {
			return errors.ErrUnsupported // the header may be on its way to others
		}
		if conn, rw, err = c.Hijack(); err != nil {
			return err
		}
		r.hijacked, r.status, r.header = true, http.StatusSwitchingProtocols, http.Header{}
		return nil
	})
	if err == nil {
		r.decide()
	}
	return conn, rw, err
}

// goPrivate leaves the run to its client, and to the requests that follow it by now.
// Without any of them it is cancelled.
func (r *run) goPrivate() {
	r.mu.Lock()
	r.private = r.private || !r.done
	forWhole := r.forWhole
	r.mu.Unlock()
	if !r.rec.Pace() {
		r.cancel(errClientGone)
		return
	}
	if forWhole {
		r.publish(outcome{then: readAlong}) // the handler waits for its readers now
	}
	if r.reader != nil {
		context.AfterFunc(r.asked.Context(), func() { r.leave(r.reader) })
	}
}

// leave is called when a reader is closed. The last one ends a run that is not recorded.
func (r *run) leave(reader *httpcache.Reader) {
	if reader.Close() {
		r.cancel(errClientGone)
	}
}

func (r *run) isPrivate() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.private
}

// detach is called when the client leaves: the run goes on for others, if it may.
func (r *run) detach() {
	r.client.leave()
	r.leave(r.reader)
}

// publish tells the client its next step. The first call counts: publish reports whether this
// is it.
func (r *run) publish(o outcome) (first bool) {
	r.publishing.Do(func() {
		r.out, first = o, true
		close(r.ready)
	})
	return first
}

// end ends the recording and the turn when the handler has returned.
func (r *run) end() {
	err := r.endResponse()
	if r.live != nil {
		r.live.Trailer = r.storedTrailer()
		defer r.live.End(nil, err)
	}
	r.rec.End(err)
	close(r.ended)
	defer func() {
		if p := recover(); p != nil { // Options.Tags panicked
			r.fail(&panicError{p})
		}
	}()
	switch {
	case err != nil:
		r.fail(err)
	case r.recording:
		r.store()
	default:
		r.publish(outcome{then: readAlong}) // it has gone private
	}
}

// endResponse notes the end of the response. It returns an error if the response is not
// whole.
func (r *run) endResponse() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = true
	switch {
	case r.req.Context().Err() != nil: // the handler was told to stop
		r.aborted = true
	case r.expected > r.written && httpcache.BodyAllowed(r.status) && !r.hijacked:
		r.aborted = true
	}
	switch {
	case r.aborted && r.panicked != nil && r.panicked != http.ErrAbortHandler:
		return &panicError{r.panicked}
	case r.aborted && !r.hijacked, r.status == 0:
		return httpcache.ErrNotWhole
	case !r.hijacked:
		r.trailer = r.trailers()
	}
	return nil
}

// trailers returns the fields that the handler set for after the body. r.mu is held.
func (r *run) trailers() http.Header {
	var t http.Header
	add := func(name string, values []string) {
		if t == nil {
			t = http.Header{}
		}
		t[http.CanonicalHeaderKey(name)] = append([]string(nil), values...)
	}
	for name := range httpcache.NamesIn(r.header["Trailer"]) {
		if values := r.handlers[name]; len(values) > 0 {
			add(name, values)
		}
	}
	for name, values := range r.handlers {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			add(name, values)
		}
	}
	return t
}

// A panicError is the handler's panic, for the requests that waited for its run.
type panicError struct{ value any }

func (e *panicError) Error() string { return "middleware: the handler panicked" }
