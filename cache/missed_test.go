package cache_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// missDelay is the longest time for which a miss may delay reads of its key.
const missDelay = 4 * time.Millisecond

// counted is a store in a bubble, and the commands that it sends.
func counted(t *testing.T) (*cache.Redis, *redistest.Counter) {
	t.Helper()
	client := redistest.RunEmbeddedInMemory(t).Client()
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	synctest.Wait()
	commands := &redistest.Counter{}
	client.AddHook(commands)
	return s, commands
}

// took is for how long a read of the key takes, in fake time.
func took(t *testing.T, s cache.Store, key string, found bool) time.Duration {
	t.Helper()
	began := time.Now()
	if r, err := s.Read(t.Context(), key); err != nil || r.Found != found {
		t.Errorf("%s: %+v, %v; want found: %v", key, r, err, found)
	}
	return time.Since(began)
}

func TestMissesDoNotDelayReadsOfOtherKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := counted(t)
		for i := range 8 {
			if err := s.Set(t.Context(), fmt.Sprint("warm", i), entryOf("v", time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 200 {
					if d := took(t, s, fmt.Sprint("warm", i), true); d > 0 {
						t.Errorf("a read of a warm key took %v", d)
					}
					time.Sleep(200 * time.Microsecond)
				}
			})
			wg.Go(func() {
				for range 80 {
					if d := took(t, s, "absent", false); d > missDelay {
						t.Errorf("a read of an absent key took %v", d)
					}
					time.Sleep(500 * time.Microsecond)
				}
			})
		}
		wg.Wait()
	})
}

func TestReadsAfterAMissShareOneCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, commands := counted(t)
		for range 3 {
			took(t, s, "cold", false)
			synctest.Wait() // no read is queued or under way
			commands.Reset()
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { took(t, s, "cold", false) })
			}
			wg.Wait()
			if n := commands.Count("get"); n != 1 {
				t.Errorf("100 reads after a miss cost %d commands, want 1", n)
			}
			time.Sleep(missDelay)
		}
	})
}

func TestRoundsOfColdReadsCostACommandEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, commands := counted(t)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				for range 3 {
					took(t, s, "cold", false)
				}
			})
		}
		wg.Wait()
		if n := commands.Count("get"); n > 4 { // one more for the callers that came during the first
			t.Errorf("100 callers that read a cold key three times cost %d commands, want at most 4", n)
		}
	})
}

func TestMissIsForgottenAfterItsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := counted(t)
		took(t, s, "cold", false)
		time.Sleep(missDelay)
		if d := took(t, s, "cold", false); d > 0 {
			t.Errorf("a read after the pause took %v", d)
		}
	})
}

func TestStoredEntryEndsThePauseOfItsMiss(t *testing.T) {
	for name, store := range map[string]func(*testing.T, cache.Store){
		"set": func(t *testing.T, s cache.Store) {
			if err := s.Set(t.Context(), "k", entryOf("v", time.Hour)); err != nil {
				t.Error(err)
			}
		},
		"fill": func(t *testing.T, s cache.Store) {
			a, err := s.Acquire(t.Context(), "k", cache.Ask{TTL: time.Second, Window: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := s.Fill(t.Context(), a.Lease, entryOf("v", time.Hour)); !ok || err != nil {
				t.Errorf("Fill: %v, %v", ok, err)
			}
		},
		"fill of many": func(t *testing.T, s cache.Store) {
			a := s.AcquireMany(t.Context(), []cache.Request{{Key: "k", Ask: cache.Ask{TTL: time.Second, Window: time.Minute}}})
			r := s.ReturnMany(t.Context(), []cache.Return{{Lease: a[0].Answer.Lease, Entry: entryOf("v", time.Hour)}})
			if !r[0].OK || r[0].Err != nil {
				t.Errorf("ReturnMany: %+v", r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := counted(t)
				time.Sleep(time.Second) // its subscription is up
				took(t, s, "k", false)
				store(t, s)
				if d := took(t, s, "k", true); d > 0 {
					t.Errorf("the read after it took %v", d)
				}
			})
		})
	}
}
