package redisstore_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/storetest"
)

// open opens a store with the public defaults for the options that are zero.
func open(client redis.UniversalClient, opts redisstore.Options) (*redisstore.Store, error) {
	if opts.RedisTimeout == 0 {
		opts.RedisTimeout = 250 * time.Millisecond
	}
	if opts.BreakerFailures == 0 {
		opts.BreakerFailures = 2
	}
	return redisstore.Open(client, opts)
}

// opened is a store that is closed with the test. Its namespace is test if none is given.
func opened(t testing.TB, client redis.UniversalClient, opts redisstore.Options) *redisstore.Store {
	t.Helper()
	if opts.Namespace == "" {
		opts.Namespace = "test"
	}
	s, err := open(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func entryOf(payload string, ttl time.Duration) *store.Entry {
	return &store.Entry{Kind: store.Value, TTL: ttl, FreshFor: ttl, Payload: []byte(payload)}
}

// lasting asks for a lease that outlasts a test.
func lasting(key string) store.Request {
	return store.Request{Key: key, TTL: 20 * time.Second, RenewFor: 30 * time.Second, MaxAttempts: 3, Window: time.Minute}
}

// read waits for the answer of a read.
func read(ctx context.Context, s store.Store, key string) (*store.Reading, error) {
	return storetest.StartRead(ctx, s, key).Result()
}

func acquire(ctx context.Context, s store.Store, r store.Request) store.Answer {
	return s.Acquire(ctx, []store.Request{r})[0]
}

// granted acquires a key that nothing holds.
func granted(t testing.TB, s store.Store, key string) *store.Lease {
	t.Helper()
	a := acquire(context.Background(), s, lasting(key))
	if a.Err != nil || a.Verdict != store.Granted {
		t.Fatalf("%q: %v, %v, want granted", key, a.Verdict, a.Err)
	}
	return a.Lease
}

func giveBack(ctx context.Context, s store.Store, r store.Return) store.Returned {
	return s.Return(ctx, []store.Return{r})[0]
}

func change(ctx context.Context, s store.Store, c store.Change) error {
	return s.Change(ctx, []store.Change{c})[0]
}

func set(ctx context.Context, s store.Store, key string, e *store.Entry) error {
	return change(ctx, s, store.Change{Kind: store.Set, Key: key, Entry: e})
}

func remove(ctx context.Context, s store.Store, key string) error {
	return change(ctx, s, store.Change{Kind: store.Delete, Key: key})
}

// mustSet stores a value for an hour.
func mustSet(t testing.TB, s store.Store, key, payload string) {
	t.Helper()
	if err := set(context.Background(), s, key, entryOf(payload, time.Hour)); err != nil {
		t.Fatal(err)
	}
}

// reads checks that a fresh entry with the payload is stored under a key.
func reads(t testing.TB, s store.Store, key, payload string) *store.Reading {
	t.Helper()
	r, err := read(context.Background(), s, key)
	if err != nil || !r.Fresh() || string(r.Entry.Payload) != payload {
		t.Fatalf("%q: %+v, %v; want %.40q", key, r, err, payload)
	}
	return r
}

// eventually waits until something is true.
func eventually(t testing.TB, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never happened")
		}
	}
}

// contains reports whether an error says all of that.
func contains(err error, parts ...string) bool {
	return err != nil && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(err.Error(), part) })
}

// masterOf is the place of the master that serves a name.
func masterOf(t testing.TB, cluster *redistest.Cluster, name string) int {
	t.Helper()
	master, err := cluster.MasterFor(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Index(cluster.Masters(), master)
}
