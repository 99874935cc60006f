package guide_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/lock"
	"github.com/stampedeguard/stampede/middleware"
)

// The functions of this file are the code of recipes.md.

type User struct{ ID, Name string }

var (
	_ = newUsers
	_ = user
	_ = rename
	_ = monthlyReport
	_ = newModel
)

func newUsers(store cache.Store) (*guard.Guard[User], error) {
	return guard.New[User](store, "users", guard.Policy{
		TTL:      time.Minute,
		Jitter:   0.1,
		NotFound: func(err error) bool { return errors.Is(err, sql.ErrNoRows) },
	})
}

func user(ctx context.Context, users *guard.Guard[User], db *sql.DB, id string) (User, error) {
	return users.Get(ctx, id, func(ctx context.Context) (u User, err error) {
		err = db.QueryRowContext(ctx, "SELECT id, name FROM users WHERE id = $1", id).Scan(&u.ID, &u.Name)
		return u, err
	})
}

func rename(ctx context.Context, users *guard.Guard[User], db *sql.DB, id, name string) error {
	if _, err := db.ExecContext(ctx, "UPDATE users SET name = $1 WHERE id = $2", name, id); err != nil {
		return err
	}
	return users.Delete(ctx, id) // after the commit
}

func monthlyReport(store cache.Store, build func(ctx context.Context, month string) ([]byte, error)) (http.Handler, error) {
	reports, err := guard.New[[]byte](store, "reports", guard.Policy{
		TTL:           10 * time.Minute,
		Stale:         24 * time.Hour,
		FetchTimeout:  5 * time.Minute,
		MaxBytes:      64 << 20,
		CompressAbove: 16 << 10,
	})
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		month := r.PathValue("month")
		report, err := reports.Get(r.Context(), month, func(ctx context.Context) ([]byte, error) {
			return build(ctx, month)
		})
		if err != nil {
			http.Error(w, "the report is not available", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(report)
	}), nil
}

type answer struct {
	Text   string
	Tokens int
}

func newModel(rdb redis.UniversalClient, store cache.Store) (*guard.Guard[string], error) {
	limit := budget.Limit{Rate: 100_000, Per: time.Minute, Burst: 20_000, MaxInFlight: 8}
	tokens, err := budget.New(rdb, "model", limit, budget.Options{Namespace: "shop"})
	if err != nil {
		return nil, err
	}
	return guard.New[string](store, "answers", guard.Policy{
		TTL:           24 * time.Hour,
		Budget:        tokens, // close it after the guard
		Cost:          2_000,
		MaxBudgetWait: 10 * time.Second,
	})
}

func ask(ctx context.Context, answers *guard.Guard[string], question string, call func(ctx context.Context, idempotencyKey string) (answer, error)) (string, error) {
	r, err := answers.Load(ctx, question, func(ctx context.Context, f *guard.Fill[string]) (string, error) {
		a, err := call(ctx, f.IdempotencyKey)
		if err == nil {
			f.Cost = a.Tokens
		}
		return a.Text, err
	})
	return r.Value, err
}

type loaded struct {
	User User
	Err  error
}

// userBatch returns the batch function of a DataLoader: one result for each ID, in order.
func userBatch(users *guard.Guard[User], selectUsers func(ctx context.Context, ids []string) (map[string]User, error)) func(context.Context, []string) []loaded {
	return func(ctx context.Context, ids []string) []loaded {
		found, err := users.GetMany(ctx, ids, selectUsers) // SELECT … WHERE id IN (…)
		var failed map[string]error
		if batch := new(guard.BatchError); errors.As(err, &batch) {
			failed, err = batch.Errs, nil
		}
		results := make([]loaded, len(ids))
		for i, id := range ids {
			u, ok := found[id]
			results[i] = loaded{User: u, Err: errors.Join(err, failed[id])}
			if !ok && results[i].Err == nil {
				results[i].Err = guard.ErrNotFound
			}
		}
		return results
	}
}

func tenantPages(store cache.Store, checkSession func(http.Handler) http.Handler, pages http.Handler) (http.Handler, *middleware.Middleware, error) {
	m, err := middleware.New(store, middleware.Options{
		TTL:     time.Minute,
		Cookies: []string{}, // a run gets no cookie: its page is for the whole tenant
		Key:     func(r *http.Request) string { return tenantOf(r.Context()) },
		Context: []any{tenantKey{}}, // a run may depend on it, as it is in the key
		Tags: func(r *http.Request, _ http.Header) []string {
			return []string{"tenant:" + tenantOf(r.Context())}
		},
	})
	if err != nil {
		return nil, nil, err
	}
	// Outside: it checks each request and puts the session's tenant into the context.
	return checkSession(m.Wrap(pages)), m, nil
}

// closeBooks is called in every process, by its own timer.
func closeBooks(ctx context.Context, nights *lock.Worker, now time.Time, run func(ctx context.Context, idempotencyKey string) error) error {
	night := now.UTC().Format(time.DateOnly)
	report, err := nights.Do(ctx, night, func(ctx context.Context, a *lock.Attempt) error {
		return run(ctx, a.IdempotencyKey)
	})
	if err == nil && !report.ByOther {
		fmt.Println("the books are closed for", night)
	}
	return err
}

func newMemory(t *testing.T) *cache.Memory {
	t.Helper()
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func TestBatchFunctionAnswersEachIDInOrder(t *testing.T) {
	users, err := newUsers(newMemory(t))
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	locked := errors.New("row is locked")
	batch := userBatch(users, func(context.Context, []string) (map[string]User, error) {
		return map[string]User{"1": {"1", "Ada"}}, &guard.BatchError{Errs: map[string]error{"3": locked}}
	})
	got := batch(t.Context(), []string{"3", "2", "1"})
	if !errors.Is(got[0].Err, locked) || !errors.Is(got[1].Err, guard.ErrNotFound) || got[2].User.Name != "Ada" || got[2].Err != nil {
		t.Errorf("got %+v", got)
	}
}

func TestTenantsShareNoPage(t *testing.T) {
	runs := 0
	checkSession := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			session, err := r.Cookie("session")
			if err != nil {
				http.Error(w, "log in", http.StatusUnauthorized)
				return
			}
			tenant := session.Value[:1]
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant)))
		})
	}
	site, m, err := tenantPages(newMemory(t), checkSession, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		fmt.Fprint(w, "page of ", tenantOf(r.Context()))
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	get := func(session string) string {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if session != "" {
			r.AddCookie(&http.Cookie{Name: "session", Value: session})
		}
		w := httptest.NewRecorder()
		site.ServeHTTP(w, r)
		return w.Body.String()
	}
	for session, want := range map[string]string{"a1": "page of a", "a2": "page of a", "b1": "page of b", "": "log in\n"} {
		if got := get(session); got != want {
			t.Errorf("session %q got %q, want %q", session, got, want)
		}
	}
	if runs != 2 {
		t.Errorf("%d runs for two tenants", runs)
	}
	if err := m.PurgeTag(t.Context(), "tenant:a"); err != nil {
		t.Fatal(err)
	}
	if get("a1"); runs != 3 {
		t.Errorf("%d runs after the purge of one tenant, want 3", runs)
	}
}

func TestBooksAreClosedOnceANight(t *testing.T) {
	store := newMemory(t)
	nights, err := lock.NewWorker(store, "books", lock.WorkerPolicy{MaxAttempts: 3, Keep: 48 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer nights.Close()
	night := time.Date(2026, 11, 23, 2, 0, 0, 0, time.UTC)
	runs := 0
	for _, now := range []time.Time{night, night.Add(time.Second), night.AddDate(0, 0, 1)} {
		if err := closeBooks(t.Context(), nights, now, func(context.Context, string) error { runs++; return nil }); err != nil {
			t.Error(err)
		}
	}
	if runs != 2 {
		t.Errorf("%d runs in two nights", runs)
	}
}

func TestPaidCallIsSettledAtItsCost(t *testing.T) {
	spent := make(bill, 1)
	answers, err := guard.New[string](newMemory(t), "answers", guard.Policy{TTL: time.Hour, Budget: spent, Cost: 2_000})
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	got, err := ask(t.Context(), answers, "why?", func(context.Context, string) (answer, error) {
		return answer{"because", 700}, nil
	})
	if settled := <-spent; got != "because" || err != nil || settled != 700 {
		t.Errorf("got %q, error %v, settled at %d", got, err, settled)
	}
}

// A bill is a budget that grants everything. It holds the actual cost of a call.
type bill chan int

func (b bill) Spend(context.Context, guard.Spending) (guard.Expense, error) { return b, nil }
func (b bill) Exhausted(guard.Priority) bool                                { return false }
func (b bill) Known() guard.BudgetState                                     { return guard.BudgetState{} }
func (b bill) Settle(actual int)                                            { b <- actual }
