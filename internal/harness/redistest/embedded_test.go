//go:build unix

package redistest_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

var echo = redis.NewScript("return ARGV[1]")

func TestEmbeddedAnswersOnTCP(t *testing.T) {
	t.Parallel()
	e := redistest.RunEmbedded(t)
	c := redis.NewClient(&redis.Options{Addr: e.Addr()})
	defer c.Close()
	must(t, c.Set(t.Context(), "k", "v", time.Minute).Err())
	if got := e.Client().Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("got %q", got)
	}
}

func TestEmbeddedServesCommandsInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := redistest.RunEmbeddedInMemory(t).Client()
		must(t, c.Set(ctx, "k", "v", 0).Err())
		if got := c.Get(ctx, "k").Val(); got != "v" {
			t.Errorf("GET: %q", got)
		}
		for range 2 { // EVALSHA and EVAL, then EVALSHA alone
			if got, err := echo.Run(ctx, c, nil, "x").Text(); err != nil || got != "x" {
				t.Errorf("script: %q, %v", got, err)
			}
		}
		if exists := echo.Exists(ctx, c).Val(); len(exists) != 1 || !exists[0] {
			t.Error("the script was not loaded")
		}
		cmds, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Incr(ctx, "n")
			p.Incr(ctx, "n")
			return nil
		})
		must(t, err)
		if n := cmds[1].(*redis.IntCmd).Val(); n != 2 {
			t.Errorf("pipeline: %d", n)
		}
	})
}

// The pipeline is larger than all buffers of client and server together, and
// its replies too: over an unbuffered pipe it would stand still.
func TestEmbeddedServesALargePipelineInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := redistest.RunEmbeddedInMemory(t).Client()
		value := strings.Repeat("x", 64<<10)
		began := time.Now()
		cmds, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 20 {
				p.Set(ctx, fmt.Sprint(i), value, 0)
				p.Get(ctx, fmt.Sprint(i))
			}
			return nil
		})
		must(t, err)
		if got := cmds[39].(*redis.StringCmd).Val(); got != value {
			t.Errorf("last reply has %d bytes", len(got))
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("took %v of the bubble's time", d)
		}
	})
}

func TestEmbeddedDeliversMessagesInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		e := redistest.RunEmbeddedInMemory(t)
		c := e.Client()
		sub := c.Subscribe(ctx, "news")
		defer sub.Close()
		if _, err := sub.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		// There is no reader yet; the publisher must not care.
		for i := range 100 {
			must(t, c.Publish(ctx, "news", i).Err())
		}
		for i := range 100 {
			msg, err := sub.ReceiveMessage(ctx)
			must(t, err)
			if msg.Payload != fmt.Sprint(i) {
				t.Fatalf("message %d: %q", i, msg.Payload)
			}
		}

		ch := sub.Channel()
		must(t, c.Publish(ctx, "news", "last").Err())
		if msg := <-ch; msg.Payload != "last" {
			t.Errorf("channel: %q", msg.Payload)
		}
		time.Sleep(time.Hour) // the subscription's pings have answers
		must(t, c.Publish(ctx, "news", "later").Err())
		if msg := <-ch; msg.Payload != "later" {
			t.Errorf("channel after an hour: %q", msg.Payload)
		}
	})
}

func TestEmbeddedKeysExpireByTheBubblesClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := redistest.RunEmbeddedInMemory(t).Client()
		must(t, c.Set(ctx, "k", "v", 10*time.Second).Err())
		time.Sleep(10*time.Second - time.Millisecond)
		if ttl := c.PTTL(ctx, "k").Val(); ttl != time.Millisecond {
			t.Errorf("PTTL = %v, want 1ms", ttl)
		}
		time.Sleep(time.Millisecond)
		if err := c.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("GET at the end of its life: %v, want redis.Nil", err)
		}
		before := c.Time(ctx).Val()
		time.Sleep(time.Minute)
		if d := c.Time(ctx).Val().Sub(before); d != time.Minute {
			t.Errorf("TIME advanced by %v, want 1m", d)
		}
	})
}

// go-redis shares timers between clients: see bubblePoolSize.
func TestEmbeddedClientsKeepTimersOfBubblesApart(t *testing.T) {
	t.Parallel()
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			c := redistest.RunEmbeddedInMemory(t).Client()
			var group sync.WaitGroup
			for range 200 {
				group.Go(func() {
					if err := c.Incr(t.Context(), "n").Err(); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			if n, _ := c.Get(t.Context(), "n").Int(); n != 200 {
				t.Errorf("n = %d", n)
			}
		})
	}
}

func TestEmbeddedReadTimeoutFollowsTheBubblesClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := redistest.RunEmbeddedInMemory(t)
		opt := e.Options()
		opt.ReadTimeout = 2 * time.Second
		opt.MaxRetries = -1
		c := redis.NewClient(opt)
		defer c.Close()
		must(t, c.Ping(t.Context()).Err())

		stuck := make(chan struct{})
		e.Server().SetPreHook(func(*server.Peer, string, ...string) bool {
			<-stuck
			return false
		})
		began := time.Now()
		err := c.Get(t.Context(), "k").Err()
		took := time.Since(began)
		close(stuck)
		var timeout interface{ Timeout() bool }
		if !errors.As(err, &timeout) || !timeout.Timeout() || took != opt.ReadTimeout {
			t.Errorf("got %v after %v, want a timeout after %v", err, took, opt.ReadTimeout)
		}
	})
}

func TestStoppedEmbeddedServerRefusesClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := redistest.RunEmbeddedInMemory(t)
		c := redis.NewClient(e.Options())
		defer c.Close()
		must(t, c.Ping(t.Context()).Err())
		must(t, e.Stop())
		if err := c.Ping(t.Context()).Err(); err == nil {
			t.Error("a stopped server answered")
		}
		must(t, e.Stop())
	})
}
