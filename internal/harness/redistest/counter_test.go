//go:build unix

package redistest_test

import (
	"maps"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func TestCounterCountsEachCommandItsClientSends(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	var counter redistest.Counter
	c, other := s.Client(), s.Client()
	ctx := t.Context()
	c.AddHook(&counter)

	must(t, c.Set(ctx, "k", "v", 0).Err())
	must(t, other.Set(ctx, "k", "v", 0).Err())
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Get(ctx, "k")
		p.Get(ctx, "k")
		p.PExpire(ctx, "k", 1e9)
		return nil
	})
	must(t, err)
	must(t, c.Eval(ctx, "return redis.call('GET', KEYS[1])", []string{"k"}).Err())
	must(t, c.ConfigGet(ctx, "maxmemory").Err())

	want := map[string]int64{"set": 1, "get": 2, "pexpire": 1, "eval": 1, "config|get": 1}
	got := counter.All()
	delete(got, "hello")
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if n := counter.Total(); n != 6 {
		t.Errorf("Total = %d, want 6", n)
	}
	if n := counter.Count("set", "get"); n != 3 {
		t.Errorf("Count(set, get) = %d, want 3", n)
	}
	before := counter.Trips()
	must(t, c.Set(ctx, "k", "v", 0).Err())
	_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Get(ctx, "k")
		p.Get(ctx, "k")
		return nil
	})
	must(t, err)
	if n := counter.Trips() - before; n != 2 {
		t.Errorf("Trips = %d, want 2", n)
	}
	counter.Reset()
	if n, trips := counter.Total(), counter.Trips(); n != 0 || trips != 0 {
		t.Errorf("after Reset: Total = %d, Trips = %d", n, trips)
	}
}

func TestCounterSeesMultiAndExecOfATransaction(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	var counter redistest.Counter
	c := s.Client()
	c.AddHook(&counter)
	_, err := c.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Set(t.Context(), "k", "v", 0)
		return nil
	})
	must(t, err)
	if got := counter.All(); got["multi"] != 1 || got["set"] != 1 || got["exec"] != 1 {
		t.Errorf("got %v", got)
	}
}

// The two ways to count agree on a client that is alone.
func TestCounterAgreesWithTheServer(t *testing.T) {
	t.Parallel()
	s := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	var counter redistest.Counter
	c := s.Client()
	must(t, c.Ping(t.Context()).Err())
	c.AddHook(&counter)
	must(t, s.ResetCommands(t.Context()))
	script := redis.NewScript("return 1")
	for range 3 { // EVALSHA, EVAL, then EVALSHA
		must(t, script.Run(t.Context(), c, nil).Err())
	}
	server, err := s.Commands(t.Context())
	must(t, err)
	if counter.Count("evalsha") != server["evalsha"] || counter.Count("eval") != server["eval"] || counter.Total() != 4 {
		t.Errorf("counter %v, server %v", counter.All(), server)
	}
}
