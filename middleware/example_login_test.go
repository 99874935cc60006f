package middleware_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/middleware"
)

type tenantKey struct{}

// tenantOf is the tenant that the login put into a context.
func tenantOf(ctx context.Context) string {
	tenant, _ := ctx.Value(tenantKey{}).(string)
	return tenant
}

// login lets users with a known session in. A session is "tenant/user" here.
func login(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		session, err := r.Cookie("session")
		if err != nil {
			http.Redirect(w, r, "/login", http.StatusFound)
			return
		}
		tenant, _, _ := strings.Cut(session.Value, "/")
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant)))
	})
}

// The login is outside of the cache, and the users of one tenant share a report.
func Example_login() {
	store, err := cache.NewMemory(cache.MemoryOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	m, err := middleware.New(store, middleware.Options{
		TTL:     time.Minute,
		Cookies: []string{}, // the session tells no reports apart: the tenant does
		Key:     func(r *http.Request) string { return tenantOf(r.Context()) },
		Context: []any{tenantKey{}}, // runs may depend on it, as it is in the key
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	runs := 0
	site := login(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		fmt.Fprintf(w, "report of %s, run %d", tenantOf(r.Context()), runs)
	})))

	for _, session := range []string{"acme/ann", "acme/bill", "bolt/cleo", ""} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/report", nil)
		if session != "" {
			r.AddCookie(&http.Cookie{Name: "session", Value: session})
		}
		site.ServeHTTP(w, r)
		if w.Code == http.StatusFound {
			fmt.Println("to", w.Header().Get("Location"))
			continue
		}
		fmt.Println(w.Body)
	}
	// Output:
	// report of acme, run 1
	// report of acme, run 1
	// report of bolt, run 2
	// to /login
}
