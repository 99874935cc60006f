package cache_test

import (
	"context"
	"encoding/gob"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

func ExampleNewRedis() {
	server, err := redistest.StartEmbedded() // stands in for a Redis
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = server.Stop() }()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close() // after the store

	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "shop"})
	if err != nil {
		log.Fatal(err) // wrong options or client, or a Redis user that lacks permissions
	}
	defer store.Close()
	fmt.Println("dead holders are noticed:", store.Liveness() == nil)

	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()
	name, err := names.Get(context.Background(), "42", func(context.Context) (string, error) { return "Ada", nil })
	fmt.Println(name, err, server.Exists("shop:{names:42}"))
	// Output:
	// dead holders are noticed: true
	// Ada <nil> true
}

func ExampleACLRules() {
	rules, err := cache.ACLRules("shop", false)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ACL SETUSER shop on >password", rules)
	// Output:
	// ACL SETUSER shop on >password resetkeys resetchannels -@all ~shop:* &shop:* +hello +ping +get +mget +exists +pttl +time +set +getrange +setrange +del +pexpire +incr +sadd +srem +scard +smembers +hmget +hset +hincrby +eval +evalsha +publish +subscribe +unsubscribe +pubsub|numsub
}

// A redisLog takes the lines that go-redis writes to stderr otherwise.
type redisLog struct{ logger *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.logger.WarnContext(ctx, fmt.Sprintf(format, v...))
}

// The log lines of go-redis are those of all clients of the process, so the program
// says where they go.
func ExampleNewRedis_logLines() {
	redis.SetLogger(redisLog{slog.Default()})
}

func ExampleNewMemory() {
	store, err := cache.NewMemory(cache.MemoryOptions{MaxBytes: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()
	fmt.Println(names.Get(context.Background(), "42", func(context.Context) (string, error) { return "Ada", nil }))
	// Output: Ada <nil>
}

// Two stores on the same data behave as two processes on one Redis.
func ExampleMemory_Join() {
	here, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer here.Close()
	there := here.Join()
	defer there.Close()
	for _, s := range []cache.Store{here, there} {
		names, err := guard.New[string](s, "names", guard.Policy{TTL: time.Minute})
		if err != nil {
			log.Fatal(err)
		}
		defer names.Close()
		fmt.Println(names.Get(context.Background(), "42", func(context.Context) (string, error) {
			fmt.Println("fetching")
			return "Ada", nil
		}))
	}
	// Output:
	// fetching
	// Ada <nil>
	// Ada <nil>
}

// gobCodec stores values as encoding/gob writes them.
type gobCodec struct{}

// ID is 128 or above: lower ones are the module's own. A changed
// format takes another ID, and entries of the old one are fetched anew.
func (gobCodec) ID() byte { return 128 }

func (gobCodec) Marshal(v any) ([]byte, error) {
	var b strings.Builder
	err := gob.NewEncoder(&b).Encode(v)
	return []byte(b.String()), err
}

func (gobCodec) Unmarshal(data []byte, v any) error {
	return gob.NewDecoder(strings.NewReader(string(data))).Decode(v)
}

func ExampleCodec() {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	primes, err := guard.New[[]int](store, "primes", guard.Policy{TTL: time.Minute, Codec: gobCodec{}})
	if err != nil {
		log.Fatal(err)
	}
	defer primes.Close()

	ctx := context.Background()
	_ = primes.Set(ctx, "below 10", []int{2, 3, 5, 7})
	r, err := primes.Peek(ctx, "below 10")
	fmt.Println(r.Value, err)
	// Output: [2 3 5 7] <nil>
}
