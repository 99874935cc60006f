package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/cache/cachetest"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// reading is a store whose reads can be held up, and a client of its server.
func reading(t *testing.T, client *redis.Client, namespace string) (*cache.Redis, *gate) {
	t.Helper()
	g := &gate{held: make(chan struct{}, 100), of: func(cmd redis.Cmder) bool { return cmd.Name() == "get" || cmd.Name() == "mget" }}
	client.AddHook(g)
	s, err := cache.NewRedis(client, cache.Options{Namespace: namespace, RedisTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, g
}

// sent is what a function has a store send of reads: round trips, and by command.
// A connection that is set up meanwhile doesn't count.
func sent(g *gate, f func()) (trips int64, commands string) {
	names := []string{"get", "mget", "pttl"}
	before := make([]int64, len(names))
	for i, name := range names {
		before[i] = g.Count(name)
	}
	trips = g.passed.Load()
	f()
	trips = g.passed.Load() - trips
	for i, name := range names {
		if n := g.Count(name) - before[i]; n > 0 {
			commands += fmt.Sprint(" ", n, " ", name)
		}
	}
	return trips, commands
}

func wantRead(t *testing.T, s cache.Store, key, payload string) *cache.Reading {
	t.Helper()
	r, err := s.Read(t.Context(), key)
	if err != nil || !r.Fresh() || string(r.Entry.Payload) != payload || r.Age+r.Left != r.Entry.TTL || r.Seen != string(r.Entry.Version[:]) {
		t.Errorf("%s: %+v, %v; want %s", key, r, err, payload)
	}
	return r
}

func TestAgeOfAVersionIsAskedForOnce(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s, g := reading(t, server.Client(), "test")
	other, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, step := range []struct {
		name  string
		first func() error
		trips int64
		sent  string
	}{
		{"first", func() error { return other.Set(t.Context(), "k", entryOf("first", time.Hour)) }, 1, " 1 get 1 pttl"},
		{"known", func() error { return nil }, 1, " 1 get"},
		{"changed", func() error { return other.Set(t.Context(), "k", entryOf("changed", time.Minute)) }, 2, " 2 get 1 pttl"},
		{"known again", func() error { return nil }, 1, " 1 get"},
		{"slipped", func() error { cache.SlipClock(s, 2*time.Second); return nil }, 2, " 2 get 1 pttl"},
		{"and known", func() error { return nil }, 1, " 1 get"},
	} {
		if err := step.first(); err != nil {
			t.Fatal(err)
		}
		payload, ttl := "changed", time.Minute
		if step.name == "first" || step.name == "known" {
			payload, ttl = "first", time.Hour
		}
		trips, commands := sent(g, func() {
			if r := wantRead(t, s, "k", payload); r.Entry.TTL != ttl || r.Age < 0 || r.Age > 30*time.Second {
				t.Errorf("%s: TTL %v, age %v", step.name, r.Entry.TTL, r.Age)
			}
		})
		if trips != step.trips || commands != step.sent {
			t.Errorf("%s: %d round trips:%s, want %d:%s", step.name, trips, commands, step.trips, step.sent)
		}
	}
	if err := other.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Read(t.Context(), "k"); err != nil || r.Found || r.Seen != "" {
		t.Errorf("after Delete: %+v, %v", r, err)
	}
}

// A version whose age is known grows as old as one whose age is asked for.
func TestKnownAgeGrows(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s, g := reading(t, server.Client(), "test")
	if err := s.Set(t.Context(), "k", entryOf("v", time.Hour)); err != nil {
		t.Fatal(err)
	}
	age := wantRead(t, s, "k", "v").Age
	start := time.Now()
	eventually(t, func() bool { return time.Since(start) > 50*time.Millisecond })
	_, commands := sent(g, func() {
		if grown := wantRead(t, s, "k", "v").Age - age; grown < 45*time.Millisecond || grown > time.Since(start)+5*time.Millisecond {
			t.Errorf("grew by %v in %v", grown, time.Since(start))
		}
	})
	if commands != " 1 get" {
		t.Errorf("sent%s", commands)
	}
}

// Somebody who makes an expiry longer, or removes it, doesn't make a version that
// is known any younger.
func TestKnownAgeIsNotMadeYounger(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	admin := server.Client()
	s, _ := reading(t, server.Client(), "test")
	if err := s.Set(t.Context(), "k", entryOf("v", 100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	wantRead(t, s, "k", "v")
	if err := admin.Persist(t.Context(), "test:{k}").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		r, err := s.Read(t.Context(), "k")
		return err == nil && r.Found && !r.Fresh() && r.Left == 0
	})
}

func TestKnownKeysAreReadTogether(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for _, c := range []struct {
		name   string
		client *redis.Client
		trips  int64
		sent   string
	}{
		{"MGET", server.Client(), 2, " 2 get 1 mget 1 pttl"},
		{"refused", asUser(t, server, granted...), 3, " 8 get 1 mget 7 pttl"},
		{"known to be refused", asUser(t, server, granted...), 2, " 8 get 1 pttl"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, g := reading(t, c.client, "app")
			keys := []string{"a", "b", "c", "d", "gone", "held"}
			// together is given a key that was never missed: a key just missed is read separately.
			together := func(none string) {
				open := g.shut(&g.way)
				done := make(chan struct{})
				read := func(key string) {
					defer func() { done <- struct{}{} }()
					if r, err := s.Read(t.Context(), key); err != nil || r.Found == (key == "gone" || key == none) || r.Found && string(r.Entry.Payload) != "of "+key {
						t.Errorf("%s: %+v, %v", key, r, err)
					}
				}
				go read("held")
				<-g.held
				for i, key := range append([]string{"held", none}, keys[:5]...) {
					go read(key)
					eventually(t, func() bool { return cache.QueuedReads(s) == i+1 })
				}
				open()
				for range 8 {
					<-done
				}
			}
			for _, key := range keys {
				if err := s.Set(t.Context(), key, entryOf("of "+key, time.Hour)); err != nil {
					t.Fatal(err)
				}
				wantRead(t, s, key, "of "+key)
			}
			remove := func() {
				if err := errors.Join(s.Set(t.Context(), "gone", entryOf("of gone", time.Hour)), s.Delete(t.Context(), "gone")); err != nil {
					t.Fatal(err)
				}
			}
			remove()
			if c.name == "known to be refused" {
				together("none before")
				remove()
			}
			if trips, commands := sent(g, func() { together("none") }); trips != c.trips || commands != c.sent {
				t.Errorf("%d round trips:%s, want %d:%s", trips, commands, c.trips, c.sent)
			}
		})
	}
}

// More keys than there is room for are read with their ages, not twice.
func TestForgottenAgesCostNoRoundTrips(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	s, g := reading(t, server.Client(), "test")
	var entries []any
	var keys []string
	minter := cache.NewMinter()
	for i := range 2 * cache.AgesKept {
		e := entryOf("v", time.Hour)
		e.Version = minter.Token()
		keys = append(keys, fmt.Sprint("k", i))
		entries = append(entries, "test:{"+keys[i]+"}", e.Encode())
	}
	admin := server.Client()
	if err := admin.MSet(t.Context(), entries...).Err(); err != nil {
		t.Fatal(err)
	}
	_, err := admin.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.PExpire(t.Context(), "test:{"+key+"}", time.Hour)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	readAll := func() {
		next := make(chan string)
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for key := range next {
					if r, err := s.Read(t.Context(), key); err != nil || !r.Fresh() {
						t.Errorf("%s: %+v, %v", key, r, err)
					}
				}
			})
		}
		for _, key := range keys {
			next <- key
		}
		close(next)
		wg.Wait()
	}
	readAll()
	gets, pttls := g.Count("get"), g.Count("pttl")
	readAll()
	gets, pttls = g.Count("get")-gets, g.Count("pttl")-pttls
	// A place is shared by two names now and then.
	if most := int64(len(keys)); gets > most+most/20 || pttls < most/4 {
		t.Errorf("%d GETs and %d PTTLs for %d keys, of which half are known", gets, pttls, len(keys))
	}
}

// What a client's hooks print of a read names its keys.
func TestReadsArePrintedWithTheirKeys(t *testing.T) {
	client := redistest.RunStandalone(t, redistest.StandaloneConfig{}).Client()
	var mu sync.Mutex
	var printed []string
	client.AddHook(&gate{of: func(cmd redis.Cmder) bool {
		mu.Lock()
		defer mu.Unlock()
		if text := cmd.String(); cmd.Name() == "get" && !strings.Contains(text, "probe") {
			printed = append(printed, text)
		}
		return false
	}})
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Set(t.Context(), "k", entryOf("v", time.Hour)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantRead(t, s, "k", "v")
	}
	if _, err := s.Read(t.Context(), "none"); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"get test:{k}: ", "get test:{k}: ", "get test:{none}: "}; !slices.Equal(printed, want) {
		t.Errorf("%q, want %q", printed, want)
	}
}

// A keeper is a hook that keeps pipelines back, as a limiter may, without telling
// their commands. It counts those that go by MGET.
type keeper struct {
	shut  atomic.Bool
	spare atomic.Int64 // so many go through before it keeps any back
	mgets atomic.Int64
}

var errKept = errors.New("kept back")

func (*keeper) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*keeper) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *keeper) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.shut.Load() && h.spare.Add(-1) < 0 {
			return errKept
		}
		if cmds[0].Name() == "mget" {
			h.mgets.Add(1)
		}
		return next(ctx, cmds)
	}
}

func openWithKeeper(t *testing.T) (*cache.Redis, *keeper) {
	t.Helper()
	client := redistest.RunStandalone(t, redistest.StandaloneConfig{}).Client()
	h := &keeper{}
	client.AddHook(h)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "test", BreakerFailures: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, h
}

func TestReadsThatAHookKeepsBackFail(t *testing.T) {
	s, h := openWithKeeper(t)
	keys := []string{"a", "b", "c"}
	for _, key := range keys {
		if err := s.Set(t.Context(), key, entryOf("of "+key, time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // ages are unknown, and known
		h.shut.Store(true)
		if r, err := s.Read(t.Context(), "a"); !errors.Is(err, cache.ErrUnavailable) || !errors.Is(err, errKept) {
			t.Errorf("%+v, %v", r, err)
		}
		for i, r := range cachetest.ReadMany(t.Context(), s, keys) {
			if !errors.Is(r.Err, cache.ErrUnavailable) || !errors.Is(r.Err, errKept) {
				t.Errorf("%q: %+v, %v", keys[i], r.Reading, r.Err)
			}
		}
		h.shut.Store(false)
		n := h.mgets.Load()
		for i, r := range cachetest.ReadMany(t.Context(), s, keys) {
			if r.Err != nil || string(r.Reading.Entry.Payload) != "of "+keys[i] {
				t.Errorf("%q: %+v, %v", keys[i], r.Reading, r.Err)
			}
		}
		if h.mgets.Load() != n+1 {
			t.Error("they aren't read together any more")
		}
	}
}

func TestScriptsThatAHookKeepsBackFail(t *testing.T) {
	s, h := openWithKeeper(t)
	ctx := t.Context()
	wantKept := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, cache.ErrUnavailable) || !errors.Is(err, errKept) {
			t.Errorf("%s: error %v", what, err)
		}
	}
	requests := []cache.Request{{Key: "a", Ask: lasting()}, {Key: "b", Ask: lasting()}}
	returns := acquired(t, s.AcquireMany(ctx, requests))

	h.shut.Store(true)
	for _, tagged := range []func(context.Context, ...string) error{s.DeleteTag, s.ExpireTag} {
		h.spare.Store(0)
		wantKept("clock", tagged(ctx, "t"))
		h.spare.Store(1)
		wantKept("tag", tagged(ctx, "t"))
	}
	h.spare.Store(0)
	_, err := s.Stamp(ctx)
	wantKept("stamp", err)
	for _, r := range s.ReturnMany(ctx, returns) {
		wantKept("fill", r.Err)
	}
	h.shut.Store(false)

	for _, r := range requests { // the leases are still there, and are given back again
		eventually(t, func() bool {
			a, err := s.Acquire(ctx, r.Key, r.Ask)
			return err == nil && a.Verdict == cache.HasEntry
		})
	}
}

func TestRefusedMGETIsNotTriedTwiceInOneCall(t *testing.T) {
	client := asUser(t, redistest.RunStandalone(t, redistest.StandaloneConfig{}), granted...)
	h := &keeper{}
	client.AddHook(h)
	s, err := cache.NewRedis(client, cache.Options{Namespace: "app"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	keys := make([]string, 4100)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	for i := 0; i < len(keys); i += 1000 {
		if err := s.Set(t.Context(), keys[i], entryOf("of "+keys[i], time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range cachetest.ReadMany(t.Context(), s, keys) {
		if r.Err != nil || r.Reading.Found != (i%1000 == 0) || r.Reading.Found && string(r.Reading.Entry.Payload) != "of "+keys[i] {
			t.Errorf("%q: %+v, %v", keys[i], r.Reading, r.Err)
		}
	}
	if n := h.mgets.Load(); n != 1 {
		t.Errorf("%d pipelines of MGETs", n)
	}
}
