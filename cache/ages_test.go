package cache_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/cache/cachetest"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// inBubble runs a test in fake time, on a store whose reads can be held up, and
// with a client of its server.
func inBubble(t *testing.T, test func(t *testing.T, s *cache.Redis, g *gate, admin *redis.Client)) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		s, g := reading(t, server.Client(), "test")
		test(t, s, g, server.Client())
	})
}

// plant stores the bytes of an entry with an expiry that need not be its own; 0:
// none.
func plant(t *testing.T, admin *redis.Client, key string, b []byte, left time.Duration) {
	t.Helper()
	if err := admin.Set(t.Context(), "test:{"+key+"}", b, left).Err(); err != nil {
		t.Fatal(err)
	}
}

// wantAge reads a key by each of the ways there are. A reading is never younger
// than its entry, nor older by more than some slack.
func wantAge(t *testing.T, s cache.Store, key string, age, slack time.Duration) {
	t.Helper()
	many := cachetest.ReadMany(t.Context(), s, []string{key})[0]
	one, err := s.Read(t.Context(), key)
	if err != nil || many.Err != nil {
		t.Fatal(err, many.Err)
	}
	for _, r := range []*cache.Reading{one, many.Reading} {
		if !r.Found || r.Age < age || r.Age > age+slack {
			t.Errorf("%s: found=%v at age %v, want %v and at most %v more", key, r.Found, r.Age, age, slack)
		}
	}
}

func wantFound(t *testing.T, s cache.Store, key string) {
	t.Helper()
	if r, err := s.Read(t.Context(), key); err != nil || !r.Found {
		t.Errorf("%s: %+v, %v", key, r, err)
	}
}

// whileHeld has a key read, and calls f while what is sent, or the answer, is held
// up on its way.
func whileHeld(t *testing.T, s cache.Store, g *gate, side *chan struct{}, key string, f func()) *cache.Reading {
	t.Helper()
	open := g.shut(side)
	read := make(chan *cache.Reading)
	go func() {
		r, err := s.Read(t.Context(), key)
		if err != nil {
			t.Error(err)
		}
		read <- r
	}()
	<-g.held
	f()
	open()
	return <-read
}

// However long a read takes, and whether it learns an age or knows it: it counts
// from before the question to after the answer.
func TestSlowReadsMakeNothingYounger(t *testing.T) {
	const slow = 20 * time.Second
	for _, side := range []string{"way", "answer"} {
		t.Run(side, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *cache.Redis, g *gate, _ *redis.Client) {
				if err := s.Set(t.Context(), "k", entryOf("v", time.Hour)); err != nil {
					t.Fatal(err)
				}
				of := &g.way
				if side == "answer" {
					of = &g.ret
				}
				whileHeld(t, s, g, of, "k", func() { time.Sleep(slow) })
				wantAge(t, s, "k", slow, slow)
				// What is known goes by a single GET, which isn't held on its way back.
				r := whileHeld(t, s, g, &g.way, "k", func() { time.Sleep(slow) })
				if r.Age < 2*slow || r.Age > 3*slow || r.Left != time.Hour-r.Age {
					t.Errorf("known: age %v, left %v", r.Age, r.Left)
				}
			})
		})
	}
}

// A process that is late takes answers in that have been lying there, by reads and by
// acquires: what they tell the age of has grown older meanwhile.
func TestLateAnswersMakeNothingYounger(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s, _ := reading(t, server.Client(), "test")
	if err := s.Set(t.Context(), "k", entryOf("v", time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ late, age, slack time.Duration }{
		{0, 0, time.Minute - time.Second},
		{time.Minute + time.Second, time.Minute, time.Minute},
		{2 * time.Hour, time.Hour, 2 * time.Hour},
	} {
		read, acquired, err := cache.LateReadings(t.Context(), s, "k", step.late)
		if err != nil {
			t.Fatal(err)
		}
		for by, r := range map[string]*cache.Reading{"read": read, "acquire": acquired} {
			if r.Age < step.age || r.Age > step.age+step.slack || r.Left != max(0, time.Hour-r.Age) {
				t.Errorf("%s, %v late: age %v, left %v; want %v and at most %v more", by, step.late, r.Age, r.Left, step.age, step.slack)
			}
		}
	}
	s2, _ := reading(t, server.Client(), "other")
	if read, _, err := cache.LateReadings(t.Context(), s2, "none", time.Hour); err != nil || read.Found || read.Age != 0 {
		t.Errorf("nothing stored: %+v, %v", read, err)
	}
}

// An age is that of the version that is there, not of the name.
func TestAgeIsThatOfTheVersion(t *testing.T) {
	inBubble(t, func(t *testing.T, s *cache.Redis, _ *gate, _ *redis.Client) {
		for range 3 {
			if err := s.Set(t.Context(), "k", entryOf("v", time.Hour)); err != nil {
				t.Fatal(err)
			}
			wantAge(t, s, "k", 0, 0)
			time.Sleep(20 * time.Minute)
			wantAge(t, s, "k", 20*time.Minute, 0)
		}
	})
}

// Versions that share a place in the table are told apart. Those there is no room
// for are asked for, at once.
func TestVersionsThatShareAPlaceAreToldApart(t *testing.T) {
	inBubble(t, func(t *testing.T, s *cache.Redis, g *gate, admin *redis.Client) {
		const n = 20
		for range 2 {
			for i := range n {
				e := entryOf("v", time.Hour)
				e.Version = cache.Token{0: 1}
				binary.BigEndian.PutUint64(e.Version[8:], uint64(1+i*cache.AgesKept))
				plant(t, admin, fmt.Sprint("k", i), e.Encode(), time.Hour-time.Duration(i)*time.Minute)
				wantAge(t, s, fmt.Sprint("k", i), time.Duration(i)*time.Minute, 0)
			}
		}
		asked := g.Count("pttl")
		for i := range n {
			if trips, commands := sent(g, func() { wantFound(t, s, fmt.Sprint("k", i)) }); trips != 1 {
				t.Errorf("k%d: %d round trips:%s", i, trips, commands)
			}
		}
		if asked = g.Count("pttl") - asked; asked < n/2 || asked == n {
			t.Errorf("%d of %d ages were asked for", asked, n)
		}
	})
}

// A copy with a longer expiry (RESTORE) looks young, but makes its original no
// younger.
func TestCopyMakesItsOriginalNoYounger(t *testing.T) {
	inBubble(t, func(t *testing.T, s *cache.Redis, _ *gate, admin *redis.Client) {
		e := entryOf("v", time.Hour)
		e.Version = cache.NewMinter().Token()
		plant(t, admin, "k", e.Encode(), 10*time.Minute)
		wantAge(t, s, "k", 50*time.Minute, 0)
		plant(t, admin, "copy", e.Encode(), time.Hour)
		wantFound(t, s, "copy")
		wantAge(t, s, "k", 50*time.Minute, 0)
	})
}

// A machine that sleeps while an answer is under way has a younger one than it
// thinks: that isn't learned.
func TestAnswerFromBeforeTheMachineSleptIsNotLearned(t *testing.T) {
	for _, other := range []bool{false, true} { // wakes first
		t.Run(fmt.Sprint("other=", other), func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *cache.Redis, g *gate, _ *redis.Client) {
				for _, key := range []string{"k", "other"} {
					if err := s.Set(t.Context(), key, entryOf("v", time.Hour)); err != nil {
						t.Fatal(err)
					}
				}
				whileHeld(t, s, g, &g.ret, "k", func() {
					cache.SlipClock(s, 10*time.Minute)
					if other {
						done := make(chan struct{})
						go func() { // one of a single name goes by a GET, which is not held
							cachetest.ReadMany(t.Context(), s, []string{"none"})
							close(done)
						}()
						<-done
					}
				})
				if _, commands := sent(g, func() { wantRead(t, s, "k", "v") }); commands != " 1 get 1 pttl" {
					t.Errorf("sent%s", commands)
				}
				if _, commands := sent(g, func() { wantRead(t, s, "k", "v") }); commands != " 1 get" {
					t.Errorf("then sent%s", commands)
				}
			})
		})
	}
}

// What has no age that could be learned costs a read no second round trip, but
// for the first one.
func TestNameOfWhatHasNoAgeIsReadOnce(t *testing.T) {
	for name, foreign := range map[string]struct {
		b    []byte
		left time.Duration
	}{
		"short":     {[]byte("short"), time.Hour},
		"no expiry": {func() []byte { e := entryOf("v", time.Hour); e.Version[0] = 1; return e.Encode() }(), 0},
		"too long":  {func() []byte { e := entryOf("v", time.Hour); e.Version[0] = 2; return e.Encode() }(), 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *cache.Redis, g *gate, admin *redis.Client) {
				if err := s.Set(t.Context(), "k", entryOf("v", time.Hour)); err != nil {
					t.Fatal(err)
				}
				wantRead(t, s, "k", "v")
				plant(t, admin, "k", foreign.b, foreign.left)
				for i, want := range []string{" 2 get 1 pttl", " 1 get 1 pttl", " 1 get 1 pttl"} {
					_, commands := sent(g, func() {
						if _, err := s.Read(t.Context(), "k"); err != nil {
							t.Error(err)
						}
					})
					if commands != want {
						t.Errorf("read %d: sent%s, want%s", i, commands, want)
					}
				}
			})
		})
	}
}

// The records that judge an entry are read no sooner than it: one that was missing
// when the entry was read first may be there when it is read again.
func TestRecordsAreReadAgainWithTheEntry(t *testing.T) {
	inBubble(t, func(t *testing.T, s *cache.Redis, g *gate, admin *redis.Client) {
		other, err := cache.NewRedis(admin, cache.Options{Namespace: "test"})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		set := func(payload string) {
			t.Helper()
			e := entryOf(payload, time.Hour)
			e.Tags = []string{"tag"}
			if err := other.Set(t.Context(), "k", e); err != nil {
				t.Fatal(err)
			}
		}
		set("first")
		wantRead(t, s, "k", "first") // its age and its tag are known
		set("second")
		_, record, _ := cache.TagNames("test", "tag")
		if err := admin.Del(t.Context(), record).Err(); err != nil {
			t.Fatal(err)
		}
		r := whileHeld(t, s, g, &g.ret, "k", func() { set("third") })
		if !r.Found || string(r.Entry.Payload) != "third" {
			t.Errorf("%+v", r)
		}
		// And a tag that is deleted meanwhile is seen.
		set("fourth")
		r = whileHeld(t, s, g, &g.ret, "k", func() {
			if err := other.DeleteTag(t.Context(), "tag"); err != nil {
				t.Error(err)
			}
		})
		if r.Found || r.Seen == "" {
			t.Errorf("%+v", r)
		}
	})
}

// A cut is a hook that takes the last values out of what MGETs answer.
type cut struct{ by int }

func (*cut) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*cut) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (c *cut) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if m, ok := cmd.(*redis.StringSliceCmd); ok && cmd.Name() == "mget" {
				m.SetVal(m.Val()[:max(0, len(m.Val())-c.by)])
			}
		}
		return err
	}
}

func TestValuesMissingFromAnMGETAreReadSingly(t *testing.T) {
	for _, by := range []int{1, 5, 1000} {
		t.Run(fmt.Sprint(by), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := redistest.RunEmbeddedInMemory(t).Client()
				s, _ := reading(t, client, "test")
				client.AddHook(&cut{by})
				keys := manyKeys(t, s, 300)
				for range 2 {
					for i, r := range cachetest.ReadMany(t.Context(), s, keys) {
						if r.Err != nil || string(r.Reading.Entry.Payload) != "of "+keys[i] {
							t.Fatalf("%s: %+v", keys[i], r)
						}
					}
				}
			})
		})
	}
}

// manyKeys are stored.
func manyKeys(t *testing.T, s cache.Store, n int) []string {
	t.Helper()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
		if err := s.Set(t.Context(), keys[i], entryOf("of "+keys[i], time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	return keys
}

// Who leaves in the middle, be it of the second round trip, is told of every key
// once: what was read by then, or that it left.
func TestReadOfManyIsLeftInTheMiddle(t *testing.T) {
	inBubble(t, func(t *testing.T, s *cache.Redis, g *gate, _ *redis.Client) {
		keys := manyKeys(t, s, 200)
		cachetest.ReadMany(t.Context(), s, keys)
		for _, key := range keys[:50] {
			if err := s.Set(t.Context(), key, entryOf("new", time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		keys = slices.Concat(keys, keys, make([]string, 4000)) // three pipelines
		for _, trip := range []string{"mget", "get"} {         // "get" goes second, for what is new
			g.of = func(cmd redis.Cmder) bool { return cmd.Name() == trip }
			ctx, cancel := context.WithCancel(t.Context())
			open := g.shut(&g.way)
			done := make(chan []cachetest.Result)
			go func() { done <- cachetest.ReadMany(ctx, s, keys) }()
			<-g.held
			cancel()
			results := <-done
			for i, r := range results {
				if r.Err != nil && !errors.Is(r.Err, context.Canceled) {
					t.Fatalf("%s: key %d: %v", trip, i, r.Err)
				}
				if read := trip == "get" && i < 400 && i%200 >= 50; read != (r.Err == nil) && i < 400 {
					t.Fatalf("%s: key %d: %+v", trip, i, r)
				}
			}
			open()
			synctest.Wait()
		}
		for i, r := range cachetest.ReadMany(t.Context(), s, keys) {
			if want := i < 400; r.Err != nil || r.Reading.Found != want {
				t.Fatalf("key %d: %+v", i, r)
			}
		}
	})
}

// While its slot moves and after, a value is as old as it is: to readers who know
// its age as to those who ask for it. What replaces it at the new place is young.
func TestAgesOutliveASlotThatMoves(t *testing.T) {
	cluster := redistest.RunCluster(t, redistest.ClusterConfig{})
	ctx, key, name := t.Context(), "k", "test:{k}"
	var stores []*cache.Redis
	for range 2 {
		s, err := cache.NewRedis(cluster.Client(), cache.Options{Namespace: "test", RedisTimeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		stores = append(stores, s)
	}
	knows, asks := stores[0], stores[1]
	slot, err := cluster.Slot(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	master, err := cluster.MasterFor(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(cluster.Masters(), master)
	want, begun := "first", time.Time{}
	set := func() {
		t.Helper()
		begun = time.Now()
		if err := asks.Set(ctx, key, entryOf(want, time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	set()
	begun = begun.Add(-20 * time.Minute) // so that what is old can be told from what is new
	if err := cluster.Client().PExpire(ctx, name, time.Until(begun.Add(time.Hour))).Err(); err != nil {
		t.Fatal(err)
	}
	check := func(s *cache.Redis) {
		t.Helper()
		r, err := s.Read(ctx, key)
		if err != nil || string(r.Entry.Payload) != want {
			t.Fatalf("%+v, %v; want %s", r, err, want)
		}
		const slack = 10 * time.Second
		if age := time.Since(begun); r.Age < age-slack || r.Age > age+slack {
			t.Fatalf("%s: age %v, want %v", want, r.Age, age)
		}
	}
	check(knows)
	moved := make(chan error, 1)
	go func() { moved <- cluster.MoveSlot(ctx, slot, at, (at+1)%3) }()
	for done := false; !done; {
		select {
		case err = <-moved:
			done = true
		default:
		}
		check(knows)
		check(asks)
	}
	if err != nil {
		t.Fatal(err)
	}
	want = "second"
	set()
	check(knows)
	check(asks)
}
