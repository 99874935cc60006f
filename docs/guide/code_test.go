package guide_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/middleware"
	"github.com/stampedeguard/stampede/middleware/echoguard"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// The functions of this file are compiled only, but for the tests. Each has the code of one
// page.

type (
	Quote  struct{ Pair string }
	Report struct{ ETag string }
	Row    struct{ ID int }
	Offer  struct{ Vendor string }

	vendorAPI interface {
		Quote(ctx context.Context, pair string) (Quote, error)
		QuoteWithAge(ctx context.Context, pair, idempotencyKey string) (Quote, time.Duration, error)
		Quotes(ctx context.Context, pairs []string) (map[string]Quote, error)
		Offer(ctx context.Context, pair string) (Offer, error)
	}
	database interface {
		UpdateQuote(ctx context.Context, q Quote) error
		Row(ctx context.Context, id int) (Row, error)
	}
	reporting interface {
		Report(ctx context.Context, etag string) (r Report, changed bool, err error)
	}
)

var (
	_ = readme
	_ = get
	_ = stale
	_ = failures
	_ = manyKeys
	_ = tags
	_ = near
	_ = budgets
	_ = behindLogin
	_ = permissions
	_ = logging
	_ = serverSide
	_ = clientSide
	_ = outages
	_ = deleteName

	errOverQuota = errors.New("over quota")
)

func get(ctx context.Context, store cache.Store, vendor vendorAPI, db database, fetchEURUSD func(context.Context) (Quote, error)) error {
	quotes, err := guard.New[Quote](store, "quotes", guard.Policy{TTL: time.Minute})
	if err != nil {
		return err
	}
	defer quotes.Close()

	q, err := quotes.Get(ctx, "EURUSD", func(ctx context.Context) (Quote, error) {
		return vendor.Quote(ctx, "EURUSD")
	})
	if err != nil {
		return err
	}

	r, err := quotes.Load(ctx, "EURUSD", func(ctx context.Context, f *guard.Fill[Quote]) (Quote, error) {
		q, maxAge, err := vendor.QuoteWithAge(ctx, "EURUSD", f.IdempotencyKey)
		f.TTL = maxAge
		return q, err
	})
	if err != nil {
		return err
	}
	log.Printf("%s from %s, %v old", r.Value.Pair, r.Source, r.Age)
	log.Print(q)

	q, err = quotes.Get(ctx, "EURUSD", fetchEURUSD, guard.MaxAge(5*time.Second))
	if err != nil {
		return err
	}
	if err := db.UpdateQuote(ctx, q); err != nil {
		return err
	}
	if err := quotes.Delete(ctx, q.Pair); err != nil { // after the database has changed
		return err
	}
	return nil
}

func stale(ctx context.Context, store cache.Store, backend reporting) (guard.Result[Report], error) {
	reports, err := guard.New[Report](store, "reports", guard.Policy{
		TTL:          time.Minute,      // fresh for
		Stale:        10 * time.Minute, // then served at once, while one process refreshes it
		StaleIfError: time.Hour,        // then served instead of an error
		SoftTimeout:  200 * time.Millisecond,
	})
	if err != nil {
		return guard.Result[Report]{}, err
	}
	r, err := reports.Load(ctx, "daily", func(ctx context.Context, f *guard.Fill[Report]) (Report, error) {
		etag := ""
		if f.Stale != nil {
			etag = f.Stale.ETag
		}
		report, changed, err := backend.Report(ctx, etag)
		if err == nil && !changed {
			return Report{}, guard.ErrNotModified // the stale value is good for another TTL
		}
		return report, err
	})
	return r, err
}

func failures(ctx context.Context, store cache.Store, db database) (Row, error) {
	rows, err := guard.New[Row](store, "rows", guard.Policy{
		TTL:      time.Minute,
		NotFound: func(err error) bool { return errors.Is(err, sql.ErrNoRows) },
		Errors:   map[string]error{"over_quota": errOverQuota},
	})
	if err != nil {
		return Row{}, err
	}
	row, err := rows.Get(ctx, "42", func(ctx context.Context) (Row, error) {
		row, err := db.Row(ctx, 42)
		if errors.Is(err, errOverQuota) {
			return Row{}, guard.RetryAfter(err, time.Minute) // no process fetches this key for a minute
		}
		return row, err
	})
	return row, err
}

func manyKeys(ctx context.Context, quotes *guard.Guard[Quote], vendor vendorAPI, pairs []string) (map[string]Quote, error) {
	prices, err := quotes.GetMany(ctx, pairs, func(ctx context.Context, pairs []string) (map[string]Quote, error) {
		return vendor.Quotes(ctx, pairs) // exactly the pairs that this process has to fetch
	})
	return prices, err
}

func tags(ctx context.Context, store cache.Store, offers *guard.Guard[Offer], vendor vendorAPI) (Offer, error) {
	offer, err := offers.Load(ctx, "EURUSD", func(ctx context.Context, f *guard.Fill[Offer]) (Offer, error) {
		o, err := vendor.Offer(ctx, "EURUSD")
		f.Tags = append(f.Tags, "vendor:"+o.Vendor, "currency:EUR")
		return o, err
	})
	if err != nil {
		return offer.Value, err
	}
	err = offers.DeleteTag(ctx, "vendor:acme")
	if err != nil {
		return offer.Value, err
	}
	tagged, err := guard.New[Offer](store, "offers", guard.Policy{TTL: time.Hour, Tags: []string{"offers"}},
		guard.TagsOf(func(key string, o Offer) []string { return []string{"vendor:" + o.Vendor} }))
	if err != nil {
		return offer.Value, err
	}
	return offer.Value, tagged.Close()
}

func near(store cache.Store) (*guard.Guard[string], error) {
	names, err := guard.New[string](store, "names", guard.Policy{
		TTL:  time.Minute,
		Near: guard.Near{MaxEntries: 10_000},
	})
	return names, err
}

func outages(ctx context.Context, store cache.Store) error {
	names, err := guard.New[string](store, "names", guard.Policy{
		TTL:          time.Minute,
		StaleIfError: time.Hour,
		Reserve:      guard.Reserve{MaxBytes: 64 << 20},
	})
	if err != nil {
		return err
	}
	return deleteName(ctx, names)
}

func deleteName(ctx context.Context, names *guard.Guard[string]) error {
	err := names.Delete(ctx, "42")
	if errors.Is(err, guard.ErrQueued) {
		err = nil // carried out when Redis is back; this process serves no stored value of the key until then
	}
	return err
}

func budgets(rdb redis.UniversalClient, store cache.Store) error {
	limit := budget.Limit{Rate: 60, Per: time.Minute, Burst: 10}
	allowance, err := budget.New(rdb, "vendor", limit, budget.Options{Namespace: "shop"})
	if err != nil {
		return err
	}
	defer allowance.Close()
	priced, err := guard.New[Quote](store, "quotes", guard.Policy{
		TTL:           time.Minute,
		Stale:         time.Hour,
		Budget:        allowance,
		MaxBudgetWait: 2 * time.Second,
	})
	if err != nil {
		return err
	}
	return priced.Close()
}

func TestNamesAreFetchedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := cache.NewMemory(cache.MemoryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		names, err := guard.New[string](store, "names", guard.Policy{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer names.Close()

		fetches := 0
		for range 120 {
			_, _ = names.Get(t.Context(), "42", func(context.Context) (string, error) {
				fetches++
				return "Ada", nil
			})
			time.Sleep(time.Second)
		}
		if fetches != 2 {
			t.Errorf("%d fetches in two minutes, want 2", fetches)
		}
	})
}

func permissions() error {
	rules, err := cache.ACLRules("shop", false) // true: for a cluster
	if err != nil {
		return err
	}
	fmt.Println("ACL SETUSER shop", rules)
	return nil
}

func logging() {
	redis.SetLogger(redisLog{slog.Default()})
}

type redisLog struct{ logger *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.logger.WarnContext(ctx, fmt.Sprintf(format, v...))
}

type tenantKey struct{}

func tenantOf(ctx context.Context) string {
	tenant, _ := ctx.Value(tenantKey{}).(string)
	return tenant
}

func behindLogin(store cache.Store, login func(http.Handler) http.Handler, report http.Handler) error {
	m, err := middleware.New(store, middleware.Options{
		TTL:      time.Minute,
		Cookies:  []string{}, // the session tells no pages apart: the tenant does
		Key:      func(r *http.Request) string { return tenantOf(r.Context()) },
		Context:  []any{tenantKey{}}, // runs may depend on it, as it is in the key
		Compress: true,
		Invalidates: func(_ *http.Request, status int) middleware.Scope {
			if status >= 300 {
				return middleware.NoPages // refused: a redirect to the login, say
			}
			return middleware.OwnPages // of the tenant that changed something
		},
	})
	if err != nil {
		return err
	}
	http.Handle("/report", login(m.Wrap(report)))
	return nil
}

func serverSide(store cache.Store, report http.Handler, echoReport echo.HandlerFunc, e *echo.Echo) error {
	m, err := middleware.New(store, middleware.Options{TTL: time.Minute, Stale: time.Hour})
	if err != nil {
		return err
	}
	http.Handle("/report", m.Wrap(report))
	e.Any("/report", echoReport, echoguard.Wrap(m))
	return nil
}

func clientSide(store cache.Store, secret []byte, allowance *budget.Budget) error {
	rt, err := transport.New(store, transport.Options{
		Secret: secret, // keys the digests that stand for URLs and credentials in Redis
		Hosts: map[string]transport.HostPolicy{"api.example.com": {
			TTL:          time.Second, // for responses that state no lifetime
			StaleIfError: time.Hour,
			Retry:        transport.Retry{Max: 2},
			Budget:       allowance, // learns from this host only
		}},
	})
	if err != nil {
		return err
	}
	client := &http.Client{Transport: rt}
	_ = client
	return nil
}

func readme(ctx context.Context, vendor vendorAPI) (Quote, error) {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	quotes, err := guard.New[Quote](store, "quotes", guard.Policy{
		TTL:   time.Minute, // fresh for
		Stale: time.Hour,   // then served while one process refreshes it, or while the vendor fails
	})
	if err != nil {
		log.Fatal(err)
	}
	q, err := quotes.Get(ctx, "EURUSD", func(ctx context.Context) (Quote, error) {
		return vendor.Quote(ctx, "EURUSD") // one call for the whole fleet
	})
	return q, err
}
