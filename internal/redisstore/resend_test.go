package redisstore_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// A losingConn loses the answers to scripts while loses is set, and counts the scripts.
type losingConn struct {
	net.Conn
	loses *atomic.Bool
	sent  *atomic.Int32
	lost  atomic.Bool
}

func (c *losingConn) Write(b []byte) (int, error) {
	if n := bytes.Count(b, []byte("evalsha")); n > 0 && c.loses.Load() {
		c.sent.Add(int32(n))
		c.lost.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *losingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.lost.Load() {
		_ = c.Close() // the client looks more than once
		return 0, io.EOF
	}
	return n, err
}

// Redis may have carried a script out even if the answer is lost. An acquire that was sent
// again and executed late would bring a dead lease back to life.
func TestScriptIsNotSentAgainByTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loses atomic.Bool
		var sent atomic.Int32
		o := redistest.RunEmbeddedInMemory(t).Options()
		dial := o.Dialer
		o.MaxRetries = 3 // the client's default
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &losingConn{Conn: conn, loses: &loses, sent: &sent}, err
		}
		client := redis.NewClient(o)
		s := opened(t, client, redisstore.Options{BreakerFailures: 100})
		t.Cleanup(func() {
			_ = s.Close()
			_ = client.Close()
		})
		time.Sleep(time.Second) // until the subscription is live
		once := func(key string) store.Request {
			r := lasting(key)
			r.Once = true
			return r
		}
		ctx := t.Context()
		for name, c := range map[string]struct {
			scripts int32
			call    func() error
		}{
			"acquire": {1, func() error { return acquire(ctx, s, once("k")).Err }},
			"set":     {1, func() error { return set(ctx, s, "k", entryOf("v", time.Minute)) }},
			"delete":  {1, func() error { return remove(ctx, s, "k") }},
			"pipeline": {2, func() error {
				return s.Change(ctx, []store.Change{{Kind: store.Delete, Key: "k"}, {Kind: store.Delete, Key: "l"}})[0]
			}},
		} {
			mustSet(t, s, "other", "v") // on a connection that works
			sent.Store(0)
			loses.Store(true)
			err := c.call()
			loses.Store(false)
			if n := sent.Load(); err == nil || n != c.scripts {
				t.Errorf("%s: %d scripts were sent, error %v; want %d and an error", name, n, err, c.scripts)
			}
			time.Sleep(time.Second)
		}
	})
}

// A moved reply says that the command was not carried out.
type movedReply struct{}

func (movedReply) Error() string { return "MOVED 1 127.0.0.1:2" }
func (movedReply) RedisError()   {}

func TestScriptsFollowAMovingSlot(t *testing.T) {
	var left atomic.Int32
	hook := around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if !isScript(cmds[0]) || left.Add(-1) < 0 {
			return next()
		}
		for _, cmd := range cmds {
			cmd.SetErr(movedReply{})
		}
		return movedReply{}
	})
	bubble(t, redisstore.Options{}, hook, func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		left.Store(2)
		l := granted(t, s, "k")
		left.Store(2)
		if r := giveBack(t.Context(), s, store.Return{Lease: l, Entry: entryOf("v", time.Hour)}); !r.OK {
			t.Errorf("the fill is answered %+v", r)
		}
		left.Store(2)
		for i, err := range s.Change(t.Context(), []store.Change{{Kind: store.Delete, Key: "k"}, {Kind: store.Delete, Key: "l"}}) {
			if err != nil {
				t.Errorf("change %d: %v", i, err)
			}
		}
	})
}

// An entry is as old as its fetch, however late Redis takes it.
func TestLateReturnStoresNoYoungerEntry(t *testing.T) {
	h := &wall{}
	bubble(t, redisstore.Options{BreakerFailures: 1000}, h.hook(), func(t *testing.T, s *redisstore.Store, _ *redistest.Embedded) {
		l := granted(t, s, "k")
		h.up.Store(true)
		if r := giveBack(t.Context(), s, store.Return{Lease: l, Entry: entryOf("v", 10*time.Second)}); r.Err == nil {
			t.Fatalf("the fill is answered %+v", r)
		}
		time.Sleep(3 * time.Second)
		h.up.Store(false)
		time.Sleep(time.Second)
		if r := reads(t, s, "k", "v"); r.Entry.FreshFor > 7*time.Second {
			t.Errorf("3 s after its fetch the entry was stored to be fresh for %v", r.Entry.FreshFor)
		}
	})
}
