package transport

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/stampedeguard/stampede/guard"
)

// pauses are the pauses that an upstream asked single users for, in a shared cache. The key
// of a response there is that of all users: a pause of the key would let the limit of one
// user stop all others. Pauses are those of this process.
type pauses struct {
	keys *keyer // of private caches

	mu    sync.Mutex
	until *lru.LRU[string, pause] // by key
}

type pause struct {
	end    time.Time
	status int
}

// maxPauses bounds the pauses that are remembered.
const maxPauses = 8192

func newPauses(shared *keyer) *pauses {
	private := *shared
	private.shared = false
	until, _ := lru.NewLRU[string, pause](maxPauses, nil) // an error means a size below 1
	return &pauses{keys: &private, until: until}
}

// apartKey is the key of the exchange's pauses; empty if it has none of its own.
func (x *exchange) apartKey() string {
	if x.t.apart == nil || !x.personal {
		return ""
	}
	custom, _ := customKey(x.p, x.own())
	key, _ := x.t.apart.keys.key(x.method, x.own(), custom, false)
	return key
}

// pauseApart pauses the calls of the exchange's user for its URL. It reports whether the
// user has pauses of its own.
func (x *exchange) pauseApart(status int, d time.Duration) bool {
	key := x.apartKey()
	if key == "" {
		return false
	}
	p := x.t.apart
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until.Add(key, pause{time.Now().Add(d), status})
	return true
}

// pausedApart is the error of the pause of the exchange's user; nil: there is none.
func (x *exchange) pausedApart() error {
	key := x.apartKey()
	if key == "" {
		return nil
	}
	p := x.t.apart
	p.mu.Lock()
	defer p.mu.Unlock()
	is, _ := p.until.Get(key)
	if left := time.Until(is.end); left > 0 {
		return guard.RetryAfter(&rejection{status: is.status, private: true}, left)
	}
	return nil
}
