//go:build unix

package redistest_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// throughProxy returns a proxy before a server and a client that neither
// retries nor waits long.
func throughProxy(t *testing.T) (*redistest.Proxy, *redis.Client) {
	t.Helper()
	p := redistest.RunProxy(t, redistest.RunEmbedded(t).Addr())
	opt := p.Options()
	opt.MaxRetries = -1
	opt.DialerRetries = 1
	opt.ReadTimeout = 150 * time.Millisecond
	c := redis.NewClient(opt)
	t.Cleanup(func() { _ = c.Close() })
	return p, c
}

func TestProxyRelays(t *testing.T) {
	t.Parallel()
	_, c := throughProxy(t)
	value := strings.Repeat("x", 1<<20)
	must(t, c.Set(t.Context(), "k", value, 0).Err())
	if got := c.Get(t.Context(), "k").Val(); got != value {
		t.Errorf("got %d bytes, want %d", len(got), len(value))
	}
}

func TestCutProxyRefusesUntilRestored(t *testing.T) {
	t.Parallel()
	p, c := throughProxy(t)
	must(t, c.Set(t.Context(), "k", "v", 0).Err())
	p.Cut()
	for range 3 {
		if err := c.Get(t.Context(), "k").Err(); err == nil || errors.Is(err, redis.Nil) {
			t.Errorf("cut: got %v, want a network error", err)
		}
	}
	if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v, want connection refused", err)
	}
	must(t, p.Restore())
	if got := c.Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("restored: %q", got)
	}
}

func TestBlackholeAcceptsAndAnswersNothing(t *testing.T) {
	t.Parallel()
	p, c := throughProxy(t)
	must(t, c.Set(t.Context(), "n", 1, 0).Err())
	must(t, p.Blackhole())
	for range 2 { // on the old connection, then on a new one
		err := c.Incr(t.Context(), "n").Err()
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("got %v, want a timeout", err)
		}
	}
	must(t, p.Restore())
	if n, err := c.Get(t.Context(), "n").Int(); n != 1 || err != nil {
		t.Errorf("restored: n = %d, %v; want 1: swallowed commands are lost", n, err)
	}
}

func TestBlackholeAfterCutAcceptsAgain(t *testing.T) {
	t.Parallel()
	p, _ := throughProxy(t)
	p.Cut()
	must(t, p.Blackhole())
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("PING\r\n"))
	must(t, err)
	must(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	var timeout net.Error
	if n, err := conn.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("read %d bytes, %v; want a timeout", n, err)
	}
}

func TestDelayHoldsBackRequestAndReply(t *testing.T) {
	t.Parallel()
	p, c := throughProxy(t)
	must(t, c.Ping(t.Context()).Err())
	const d = 20 * time.Millisecond
	p.Delay(d)
	began := time.Now()
	must(t, c.Ping(t.Context()).Err())
	if took := time.Since(began); took < 2*d {
		t.Errorf("took %v, want at least %v", took, 2*d)
	}
}

func TestRestoreEndsAWaitThatIsUnderWay(t *testing.T) {
	t.Parallel()
	p, c := throughProxy(t)
	opt := *c.Options()
	opt.ReadTimeout = time.Minute
	patient := redis.NewClient(&opt)
	defer patient.Close()
	must(t, patient.Ping(t.Context()).Err())
	p.Delay(time.Hour)
	answered := make(chan error, 1)
	go func() { answered <- patient.Ping(t.Context()).Err() }()
	select {
	case err := <-answered:
		t.Fatalf("answered in spite of the delay: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	must(t, p.Restore())
	must(t, <-answered)
}

func TestTruncateNextCutsOneReplyShort(t *testing.T) {
	t.Parallel()
	p, _ := throughProxy(t)
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	defer conn.Close()
	p.TruncateNext(3)
	_, err = conn.Write([]byte("*1\r\n$4\r\nPING\r\n"))
	must(t, err)
	got, err := io.ReadAll(conn)
	if string(got) != "+PO" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTruncateNextHappensOnce(t *testing.T) {
	t.Parallel()
	p, c := throughProxy(t)
	must(t, c.Set(t.Context(), "n", 1, 0).Err())
	p.TruncateNext(1)
	if err := c.Incr(t.Context(), "n").Err(); err == nil {
		t.Error("half a reply gave no error")
	}
	if n, err := c.Get(t.Context(), "n").Int(); n != 2 || err != nil {
		t.Errorf("n = %d, %v; want 2: the request was executed", n, err)
	}
}

func TestProxyBeforeADeadServerClosesItsConnections(t *testing.T) {
	t.Parallel()
	e := redistest.RunEmbedded(t)
	p := redistest.RunProxy(t, e.Addr())
	must(t, e.Stop())
	conn, err := net.Dial("tcp", p.Addr())
	must(t, err)
	defer conn.Close()
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes", n)
	}
}

func TestStoppedProxyStaysStopped(t *testing.T) {
	t.Parallel()
	p, _ := throughProxy(t)
	must(t, p.Stop())
	if err := p.Restore(); err == nil {
		t.Error("Restore of a stopped proxy gave no error")
	}
	must(t, p.Stop())
}

// As while a child process is being started, which holds it open.
func TestProxyWaitsForItsPort(t *testing.T) {
	t.Parallel()
	p, c := throughProxy(t)
	p.Cut()
	held, err := net.Listen("tcp", p.Addr())
	must(t, err)
	go func() {
		time.Sleep(50 * time.Millisecond)
		held.Close()
	}()
	must(t, p.Restore())
	must(t, c.Ping(t.Context()).Err())
}
