// Command lockd serves locks over HTTP, to programs in any language:
//
//	REDIS_URL=redis://127.0.0.1:6379 go run ./examples/lockd -addr 127.0.0.1:8080
//
//	POST   /NAME?ttl=10s&wait=5s   201 and {"id","fence","valid_ms"}; 409 if it is held
//	PUT    /NAME?id=ID&ttl=10s     200: the lock ends ttl from now; 410 if it is lost
//	DELETE /NAME?id=ID             204; 410 if it was not held any more
//	GET    /NAME                   200 and the holder
//
// A client that dies leaves its lock to the TTL: nothing is renewed here. Without REDIS_URL
// it keeps the locks in files, for the programs of this machine.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/lock"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on")
	flag.Parse()
	backend, err := openBackend(os.Getenv("REDIS_URL"))
	if err != nil {
		log.Fatal("lockd: ", err)
	}
	log.Fatal("lockd: ", http.ListenAndServe(*addr, newServer(backend)))
}

func openBackend(url string) (lock.Backend, error) {
	if url == "" {
		return lock.Files(filepath.Join(os.TempDir(), "lockd"))
	}
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	store, err := cache.NewRedis(redis.NewClient(opts), cache.Options{Namespace: "lockd"})
	if err != nil {
		return nil, err
	}
	return lock.On(store), nil
}

// A server keeps the locks that it has granted. One that is lost is dropped when it is next
// asked for, or by its timer.
type server struct {
	backend lock.Backend

	mu    sync.Mutex
	locks map[string]*lock.Lock // by ID
}

func newServer(backend lock.Backend) http.Handler {
	return &server{backend: backend, locks: map[string]*lock.Lock{}}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, query := strings.TrimPrefix(r.URL.Path, "/"), r.URL.Query()
	ttl, err := duration(query.Get("ttl"), 10*time.Second)
	wait, err2 := duration(query.Get("wait"), 0)
	if err := errors.Join(err, err2); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	k := s.locks[query.Get("id")]
	s.mu.Unlock()
	if k != nil && k.Name() != name {
		k = nil
	}
	switch {
	case r.Method == http.MethodPost:
		s.grant(w, r, name, ttl, wait)
	case r.Method == http.MethodGet:
		s.inspect(w, r, name)
	case k == nil:
		http.Error(w, lock.ErrLost.Error(), http.StatusGone)
	case r.Method == http.MethodPut:
		answer(w, k.Extend(r.Context(), ttl), http.StatusOK, view(k))
	case r.Method == http.MethodDelete:
		s.drop(k)
		answer(w, k.Unlock(r.Context()), http.StatusNoContent, nil)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (s *server) grant(w http.ResponseWriter, r *http.Request, name string, ttl, wait time.Duration) {
	locker, err := lock.New(lock.Options{TTL: ttl, NoRenew: true, Wait: max(wait, time.Millisecond)}, s.backend)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	k, err := locker.Lock(r.Context(), name)
	if err != nil {
		_ = locker.Close()
		answer(w, err, 0, nil)
		return
	}
	s.mu.Lock()
	s.locks[k.ID().String()] = k
	s.mu.Unlock()
	go func() { // ends with the lock
		<-k.Lost()
		s.drop(k)
		_ = locker.Close()
	}()
	answer(w, nil, http.StatusCreated, view(k))
}

func (s *server) drop(k *lock.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locks, k.ID().String())
}

func (s *server) inspect(w http.ResponseWriter, r *http.Request, name string) {
	locker, err := lock.New(lock.Options{}, s.backend)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = locker.Close() }()
	state, err := locker.Inspect(r.Context(), name)
	held := map[string]any{"held": len(state.Holders) > 0, "fence": state.Fence}
	if len(state.Holders) > 0 {
		held["id"], held["left_ms"] = state.Holders[0].ID.String(), state.Holders[0].Left.Milliseconds()
	}
	answer(w, err, http.StatusOK, held)
}

func view(k *lock.Lock) map[string]any {
	return map[string]any{"id": k.ID().String(), "fence": k.Fence(), "valid_ms": k.Valid().Milliseconds()}
}

func duration(text string, otherwise time.Duration) (time.Duration, error) {
	if text == "" {
		return otherwise, nil
	}
	return time.ParseDuration(text)
}

// answer writes the status of an error, or a body.
func answer(w http.ResponseWriter, err error, status int, body any) {
	switch {
	case errors.Is(err, lock.ErrHeld):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, lock.ErrLost):
		http.Error(w, err.Error(), http.StatusGone)
	case errors.Is(err, lock.ErrUnavailable):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case body == nil:
		w.WriteHeader(status)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
}
