package redisstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// The wake channel of a cluster of Redis 7 is a sharded one.
func TestHeldTellsHowManyProcessesWait(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]func() redis.UniversalClient{
		"standalone": func() redis.UniversalClient {
			return redistest.RunStandalone(t, redistest.StandaloneConfig{}).Client()
		},
		"cluster": func() redis.UniversalClient { return redistest.RunCluster(t, redistest.ClusterConfig{}).Client() },
	} {
		t.Run(name, func(t *testing.T) {
			c := client()
			lease := granted(t, opened(t, c, redisstore.Options{}), "k")
			const waiters = 3
			var last store.Answer
			for range waiters {
				s := opened(t, c, redisstore.Options{})
				brief := lasting("k")
				brief.Brief = true
				if a := acquire(t.Context(), s, brief); a.Err != nil || a.Verdict != store.Held || a.Holder != lease.Token || a.Waiting != 0 {
					t.Fatalf("a brief answer: %+v", a)
				}
				w := s.Watch("k")
				t.Cleanup(w.Close)
				for m := range w.C {
					if m.Signal == store.Confirmed {
						break
					}
				}
				brief.LastHeld = lease.Token
				if last = acquire(t.Context(), s, brief); last.Err != nil || last.Verdict != store.Held || last.Waiting == 0 || last.TTL != 0 {
					t.Fatalf("a brief answer to a subscribed process: %+v", last)
				}
				full := brief
				full.Brief = false
				last = acquire(t.Context(), s, full)
			}
			if last.Err != nil || last.Verdict != store.Held || last.Waiting != waiters || last.TTL <= 0 || last.Unwatched {
				t.Errorf("%+v; want %d waiting", last, waiters)
			}
		})
	}
}
