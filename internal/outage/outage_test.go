package outage_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/outage"
)

var errCall = errors.New("no answer")

// dialing is a node that connects with dial.
func dialing(t *testing.T, dial func(context.Context) (net.Conn, error)) *outage.Node {
	client := redis.NewClient(&redis.Options{
		Addr: "10.0.0.7:6379", Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	})
	t.Cleanup(func() { _ = client.Close() })
	return outage.NewNode(client)
}

func spawn(f func()) bool { go f(); return true }

func TestErrorNamesNodeAndCause(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	for name, c := range map[string]struct {
		dial func(context.Context) (net.Conn, error)
		want string
	}{
		"refused":   {func(context.Context) (net.Conn, error) { return nil, refused }, "no answer (Redis at 10.0.0.7:6379: dial tcp: connection refused)"},
		"swallowed": {func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }, "no answer (Redis at 10.0.0.7:6379: no connection within 1s)"},
		"accepted": {
			func(context.Context) (net.Conn, error) { c, _ := net.Pipe(); return c, nil },
			"no answer (Redis at 10.0.0.7:6379: it accepts connections, and sent no answer in time)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := dialing(t, c.dial)
				n.Silent(t.Context(), spawn, time.Second)
				err := n.Explain(errCall)
				n.Known(t.Context())
				if err.Error() != c.want || !errors.Is(err, errCall) {
					t.Errorf("got %q, want %q", err, c.want)
				}
				if n.Explain(err) != err {
					t.Error("it is explained twice")
				}
			})
		})
	}
}

func TestCauseLastsUntilTheNodeAnswers(t *testing.T) {
	n := outage.NewNode(nil)
	n.Failed(io.EOF)
	n.Failed(context.DeadlineExceeded) // says nothing
	was := n.Explain(errCall)
	n.Answered()
	if text := n.Explain(errCall).Error(); text != "no answer" {
		t.Errorf("after an answer: %q", text)
	}
	n.Failed(io.ErrClosedPipe)
	if was.Error() != "no answer (Redis: EOF)" {
		t.Errorf("an error of the outage before says %q", was)
	}
	if errors.Is(was, io.EOF) {
		t.Error("the cause of another call counts as the call's own error")
	}
	if text := n.Name(io.EOF).Error(); text != "EOF" {
		t.Errorf("a cause that is named: %q", text)
	}
	if n.Explain(nil) != nil {
		t.Error("no error is one")
	}
}

func TestOneDialFindsOutForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		n := dialing(t, func(ctx context.Context) (net.Conn, error) {
			dials.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		for range 100 {
			n.Silent(t.Context(), spawn, time.Second)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		n.Known(ctx) // returns with its context
		if text := n.Explain(errCall).Error(); strings.Contains(text, "within") {
			t.Errorf("it is known too early: %s", text)
		}
		n.Known(t.Context())
		if d := dials.Load(); d != 1 {
			t.Errorf("%d dials", d)
		}
		n.Silent(t.Context(), func(func()) bool { return false }, time.Second) // closed
		n.Known(t.Context())
	})
}
