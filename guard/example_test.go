package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

type Quote struct {
	Pair  string
	Price float64
}

// exampleRedis is the address of a Redis for one example.
func exampleRedis() (addr string, stop func()) {
	server, err := redistest.StartEmbedded()
	if err != nil {
		log.Fatal(err)
	}
	return server.Addr(), func() { _ = server.Stop() }
}

// exampleStore is a store that needs no Redis.
func exampleStore() *cache.Memory {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	return store
}

func Example() {
	addr, stopRedis := exampleRedis()
	defer stopRedis()

	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()

	warn := guard.LogObserver(slog.Default()) // says so if Redis is away: then each process fetches for itself
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "shop", Observer: warn})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	quotes, err := guard.New[Quote](store, "quotes", guard.Policy{
		TTL:      time.Minute, // fresh for
		Stale:    time.Hour,   // then served while one process refreshes it, or while the vendor fails
		Observer: warn,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer quotes.Close()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop() // so that the deferred calls run: a process that just ends looks like one that died

	askVendor := func(ctx context.Context) (Quote, error) {
		fmt.Println("asking the vendor")
		return Quote{Pair: "EURUSD", Price: 1.0842}, nil
	}
	for range 3 {
		q, err := quotes.Get(ctx, "EURUSD", askVendor)
		if err != nil {
			log.Print(err)
			return
		}
		fmt.Println(q.Pair, q.Price)
	}
	// Output:
	// asking the vendor
	// EURUSD 1.0842
	// EURUSD 1.0842
	// EURUSD 1.0842
}

// New reports all mistakes at once.
func ExampleNew_invalid() {
	store := exampleStore()
	defer store.Close()

	_, err := guard.New[Quote](store, "quotes:v2", guard.Policy{TTL: time.Minute, Jitter: 1.5})
	fmt.Println(err)
	// Output:
	// guard: New: the name "quotes:v2" holds ':': only letters, digits and "._-" are allowed
	// guard: Policy.Jitter is 1.5, must be from 0 to less than 1
}

func ExampleGuard_Get() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	name, err := names.Get(context.Background(), "42", func(context.Context) (string, error) {
		return "Ada", nil
	})
	fmt.Println(name, err)
	// Output: Ada <nil>
}

// A fetch that is told the last value can ask whether it is still good.
func ExampleGuard_Load() {
	store := exampleStore()
	defer store.Close()
	// Stale or StaleIfError would keep the value beyond its TTL, for a conditional
	// request as well. Here it is expired by hand, which keeps it too.
	pages, err := guard.New[string](store, "pages", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()

	fetch := func(_ context.Context, f *guard.Fill[string]) (string, error) {
		if f.Stale != nil {
			fmt.Printf("the upstream still has %q\n", *f.Stale) // 304 Not Modified
			return "", guard.ErrNotModified
		}
		f.TTL = 10 * time.Minute // as the upstream's header says
		return "hello", nil
	}

	ctx := context.Background()
	r, err := pages.Load(ctx, "/", fetch)
	fmt.Println(r.Value, r.Source, r.TTL, err)

	_ = pages.Expire(ctx, "/")
	r, err = pages.Load(ctx, "/", fetch)
	fmt.Println(r.Value, r.Source, r.TTL, err)
	r, err = pages.Load(ctx, "/", fetch)
	fmt.Println(r.Value, r.Source, err)
	// Output:
	// hello fetched 10m0s <nil>
	// the upstream still has "hello"
	// hello fetched 1m0s <nil>
	// hello store <nil>
}

// An upstream that asks to be left alone is left alone by the whole fleet.
func ExampleRetryAfter() {
	store := exampleStore()
	defer store.Close()
	quotes, err := guard.New[Quote](store, "quotes", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer quotes.Close()

	ctx := context.Background()
	asked := 0
	fetch := func(context.Context) (Quote, error) {
		asked++
		return Quote{}, guard.RetryAfter(errors.New("429 Too Many Requests"), time.Minute)
	}
	_, first := quotes.Get(ctx, "EURUSD", fetch)
	_, second := quotes.Get(ctx, "EURUSD", fetch)

	_, paused := guard.PauseOf(second)
	fmt.Println(first)
	fmt.Println("asked:", asked, "paused:", paused)
	// Output:
	// 429 Too Many Requests (retry after 1m0s)
	// asked: 1 paused: true
}

// ErrNotFound is an answer, and cached for Policy.Negative.
func ExampleGuard_Get_notFound() {
	store := exampleStore()
	defer store.Close()
	users, err := guard.New[string](store, "users", guard.Policy{TTL: time.Minute, Negative: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer users.Close()

	asked := 0
	fetch := func(context.Context) (string, error) {
		asked++
		return "", guard.ErrNotFound
	}
	for range 3 {
		_, err = users.Get(context.Background(), "nobody", fetch)
	}
	fmt.Println(errors.Is(err, guard.ErrNotFound), asked)
	// Output: true 1
}

// errors.Is finds registered sentinels in other processes.
func ExampleRemoteError() {
	errQuota := errors.New("quota used up")
	policy := guard.Policy{TTL: time.Minute, Errors: map[string]error{"quota": errQuota}}

	here := exampleStore()
	defer here.Close()
	there := here.Join() // as if in another process
	defer there.Close()
	a, err := guard.New[Quote](here, "quotes", policy)
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close()
	b, err := guard.New[Quote](there, "quotes", policy)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()

	fetch := func(context.Context) (Quote, error) {
		return Quote{}, guard.RetryAfter(fmt.Errorf("vendor: %w", errQuota), time.Minute)
	}
	_, _ = a.Get(context.Background(), "EURUSD", fetch)
	_, err = b.Get(context.Background(), "EURUSD", fetch)

	var remote *guard.RemoteError
	fmt.Println(errors.As(err, &remote), errors.Is(err, errQuota))
	// Output: true true
}

func ExampleGuard_Set() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	ctx := context.Background()
	if err := names.Set(ctx, "42", "Ada"); err != nil {
		log.Fatal(err)
	}
	r, err := names.Peek(ctx, "42")
	fmt.Println(r.Value, r.Source, err)
	// Output: Ada store <nil>
}

func ExampleGuard_Delete() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	ctx := context.Background()
	_ = names.Set(ctx, "42", "Ada")
	// Change the database first, then:
	if err := names.Delete(ctx, "42"); err != nil {
		log.Fatal(err)
	}
	_, err = names.Peek(ctx, "42")
	fmt.Println(errors.Is(err, guard.ErrMiss))
	// Output: true
}

// Unlike Delete, Expire leaves a value to serve while it is fetched anew.
func ExampleGuard_Expire() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute, Stale: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	ctx := context.Background()
	_ = names.Set(ctx, "42", "Ada")
	if err := names.Expire(ctx, "42"); err != nil {
		log.Fatal(err)
	}
	r, err := names.Peek(ctx, "42")
	fmt.Println(r.Value, r.Source, err)
	// Output: Ada stale <nil>
}

// MaxAge(0) fetches though the stored value is fresh. Other callers are served that value
// meanwhile.
func ExampleMaxAge() {
	store := exampleStore()
	defer store.Close()
	quotes, err := guard.New[Quote](store, "quotes", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer quotes.Close()

	ctx := context.Background()
	price := 1.08
	askVendor := func(context.Context) (Quote, error) {
		price += 0.01
		return Quote{"EURUSD", price}, nil
	}
	for _, opts := range [][]guard.CallOption{nil, nil, {guard.MaxAge(0)}, nil} {
		q, err := quotes.Get(ctx, "EURUSD", askVendor, opts...)
		fmt.Println(q.Pair, q.Price, err)
	}
	// Output:
	// EURUSD 1.09 <nil>
	// EURUSD 1.09 <nil>
	// EURUSD 1.1 <nil>
	// EURUSD 1.1 <nil>
}

// Stats are numbers for a dashboard, and the flights that are under way.
func ExampleGuard_Stats() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	ctx := context.Background()
	for _, key := range []string{"42", "42", "nobody"} {
		_, _ = names.Get(ctx, key, func(context.Context) (string, error) {
			for _, f := range names.Stats().InFlight {
				fmt.Println(f.Role, f.Key)
			}
			if key == "nobody" {
				return "", guard.ErrNotFound
			}
			return "Ada", nil
		})
	}
	s := names.Stats()
	fmt.Println("fetches:", s.Fetches, "own:", s.Fetched, "hits:", s.StoreHits, "not found:", s.Errors.NotFound)
	// Output:
	// fetching 42
	// fetching nobody
	// fetches: 2 own: 1 hits: 1 not found: 1
}

// A near value costs no round trip, and ends when another process changes it.
func ExampleNear() {
	here := exampleStore()
	defer here.Close()
	there := here.Join() // as if in another process
	defer there.Close()
	policy := guard.Policy{
		TTL:  time.Minute,
		Near: guard.Near{MaxEntries: 10_000},
	}
	a, err := guard.New[string](here, "names", policy)
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close()
	b, err := guard.New[string](there, "names", policy)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()

	ctx := context.Background()
	show := func() {
		r, err := a.Load(ctx, "42", func(context.Context, *guard.Fill[string]) (string, error) { return "Ada", nil })
		fmt.Println(r.Value, r.Source, err)
	}
	show()
	show()
	if err := b.Set(ctx, "42", "Grace"); err != nil {
		log.Fatal(err)
	}
	show() // on Redis: as soon as the message has arrived
	show()
	// Output:
	// Ada fetched <nil>
	// Ada near <nil>
	// Grace store <nil>
	// Grace near <nil>
}

// With Clone each caller may change its value.
func ExampleNear_clone() {
	store := exampleStore()
	defer store.Close()
	roles, err := guard.New[[]string](store, "roles", guard.Policy{
		TTL:  time.Minute,
		Near: guard.Near{MaxBytes: 1 << 20},
	}, guard.Clone(slices.Clone[[]string]))
	if err != nil {
		log.Fatal(err)
	}
	defer roles.Close()

	for range 2 {
		r, err := roles.Get(context.Background(), "42", func(context.Context) ([]string, error) {
			return []string{"reader", "writer"}, nil
		})
		fmt.Println(r, err)
		r[0] = "admin" // of this caller's own copy
	}
	// Output:
	// [reader writer] <nil>
	// [reader writer] <nil>
}

// Callers of a slow fetch get the stale value after SoftTimeout; the fetch goes
// on, and is stored.
func ExamplePolicy_softTimeout() {
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{
		TTL:          time.Millisecond,
		StaleIfError: time.Hour,
		SoftTimeout:  20 * time.Millisecond,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	ctx := context.Background()
	if err := names.Set(ctx, "42", "Ada"); err != nil {
		log.Fatal(err)
	}
	time.Sleep(5 * time.Millisecond) // it is stale now
	slow, stored := make(chan struct{}), make(chan struct{})
	r, err := names.Load(ctx, "42", func(_ context.Context, f *guard.Fill[string]) (string, error) {
		defer close(stored)
		<-slow
		f.TTL = time.Minute
		return "Grace", nil
	})
	fmt.Println(r.Value, r.Source, err)

	close(slow)
	<-stored
	name, err := names.Get(ctx, "42", func(context.Context) (string, error) { return "not asked", nil })
	fmt.Println(name, err)
	// Output:
	// Ada stale <nil>
	// Grace <nil>
}

// A private value goes to the caller that fetched it, and to no other.
func ExampleFill_private() {
	store := exampleStore()
	defer store.Close()
	carts, err := guard.New[string](store, "carts", guard.Policy{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer carts.Close()

	for _, user := range []string{"Ada", "Bob"} {
		r, err := carts.Load(context.Background(), "/cart", func(_ context.Context, f *guard.Fill[string]) (string, error) {
			f.Private = true // the response was for this user alone
			return user + "'s cart", nil
		})
		fmt.Println(r.Value, r.Stored, err)
	}
	// Output:
	// Ada's cart false <nil>
	// Bob's cart false <nil>
}

func ExampleLogObserver() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		// Warnings and above. Attributes that differ from run to run are left out here.
		Level: slog.LevelWarn,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if slices.Contains([]string{"time", "token", "duration"}, a.Key) {
				return slog.Attr{}
			}
			return a
		},
	}))
	store := exampleStore()
	defer store.Close()
	names, err := guard.New[string](store, "names", guard.Policy{
		TTL:      time.Minute,
		MaxBytes: 8,
		Observer: guard.LogObserver(logger),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer names.Close()

	name, err := names.Get(context.Background(), "42", func(context.Context) (string, error) {
		return "Ada, Countess of Lovelace", nil
	})
	fmt.Println(name, err)
	// Output:
	// level=WARN msg="stampede: fill_too_large" guard=names key=42 bytes=25
	// Ada, Countess of Lovelace <nil>
}
