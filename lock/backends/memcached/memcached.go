// Package memcached keeps the locks of package lock in memcached.
//
// memcached keeps nothing when it is restarted, and evicts old items when it is full: take
// it where two holders at a time cost efficiency only, or three of them as a quorum.
package memcached

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/stampedeguard/stampede/lock"
)

// A Backend keeps locks on one memcached server. Its expiry has whole seconds and may come
// one early: a dead holder's lock is free up to two seconds later than its TTL says, which is
// less than 30 days. Waiters poll. Make one with [New]. It is safe for concurrent use.
type Backend struct {
	client *memcache.Client
	prefix string
}

var _ lock.Backend = (*Backend)(nil)

// New returns a backend on the client, which stays the caller's and is of one server. Its
// Timeout bounds each call. The prefix has no spaces and at most 100 bytes.
func New(client *memcache.Client, prefix string) *Backend {
	return &Backend{client, prefix}
}

// String names the backend in votes.
func (b *Backend) String() string { return "memcached" }

func (b *Backend) key(kind, name string) string {
	sum := sha256.Sum256([]byte(name))
	return b.prefix + ":" + kind + ":" + hex.EncodeToString(sum[:])
}

// seconds is an expiry that does not come before ttl.
func seconds(ttl time.Duration) int32 { return int32((ttl+time.Second-1)/time.Second) + 1 }

// A lock of maxTTL has the longest expiry: memcached takes a longer one for a date.
const maxTTL = 30*24*time.Hour - time.Second

func checkTTL(ttl time.Duration) error {
	if ttl > maxTTL {
		return fmt.Errorf("lock: memcached keeps a lock for at most %v, not %v", maxTTL, ttl)
	}
	return nil
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: memcached: %w", lock.ErrUnavailable, err)
}

// A value is the holder's ID and when its time ends, by its own clock: for people only.
func value(id lock.ID, ttl time.Duration) []byte {
	return fmt.Appendf(nil, "%v %d", id, time.Now().Add(ttl).UnixMilli())
}

func parse(item *memcache.Item) (lock.ID, time.Duration, error) {
	text, ends, _ := strings.Cut(string(item.Value), " ")
	id, err := lock.ParseID(text)
	ms, err2 := strconv.ParseInt(ends, 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return lock.ID{}, 0, fmt.Errorf("%w: %q (delete it, or give the lock another name): %w", lock.ErrForeign, item.Key, err)
	}
	return id, max(0, time.Until(time.UnixMilli(ms))), nil
}

// Acquire implements [lock.Backend].
func (b *Backend) Acquire(ctx context.Context, r lock.Request) (g lock.Grant, err error) {
	if r.Holders != 1 {
		return g, errors.New("lock: memcached keeps one holder for each name: set Options.Holders to 1")
	}
	if err := errors.Join(checkTTL(r.TTL), ctx.Err()); err != nil {
		return g, err
	}
	if r.Vote {
		if g.Server, err = b.voter(r.TTL); err != nil || g.Server == "" {
			return lock.Grant{Abstains: err == nil, Left: r.TTL}, unavailable(err)
		}
	}
	key := b.key("lock", r.Name)
	err = b.client.Add(&memcache.Item{Key: key, Value: value(r.ID, r.TTL), Expiration: seconds(r.TTL)})
	if errors.Is(err, memcache.ErrNotStored) {
		item, err := b.client.Get(key)
		if errors.Is(err, memcache.ErrCacheMiss) {
			return g, nil // it has just been released: the caller asks again
		}
		if err != nil {
			return g, unavailable(err)
		}
		g.Holder, g.Left, err = parse(item)
		return g, err
	}
	if err == nil {
		g.Fence, err = b.fence(r.Name)
	}
	if err != nil {
		return g, unavailable(err)
	}
	if r.Vote { // it may have been restarted since
		if again, err := b.voter(r.TTL); err != nil || again != g.Server {
			return lock.Grant{Abstains: err == nil, Left: r.TTL}, unavailable(err)
		}
	}
	g.OK = true
	return g, nil
}

// voter names this run of the server, or is empty while the server may have forgotten a
// lock: for a TTL after it was found without its name, which it has for each TTL.
func (b *Backend) voter(ttl time.Duration) (string, error) {
	born, silent := fmt.Sprintf("%s:born:%v", b.prefix, ttl), fmt.Sprintf("%s:silent:%v", b.prefix, ttl)
	item, err := b.client.Get(born)
	if errors.Is(err, memcache.ErrCacheMiss) {
		err = b.client.Set(&memcache.Item{Key: silent, Value: []byte("1"), Expiration: seconds(ttl)})
		if err == nil {
			err = b.client.Add(&memcache.Item{Key: born, Value: fmt.Appendf(nil, "memcached %d", time.Now().UnixNano())})
		}
		if errors.Is(err, memcache.ErrNotStored) {
			err = nil
		}
		return "", err
	}
	if err != nil {
		return "", err
	}
	switch _, err := b.client.Get(silent); {
	case err == nil:
		return "", nil
	case !errors.Is(err, memcache.ErrCacheMiss):
		return "", err
	}
	return string(item.Value), nil
}

// fence counts a grant. A counter that is missing starts at the time in microseconds.
func (b *Backend) fence(name string) (uint64, error) {
	key := b.key("fence", name)
	for {
		n, err := b.client.Increment(key, 1)
		if !errors.Is(err, memcache.ErrCacheMiss) {
			return n, err
		}
		start := strconv.FormatInt(time.Now().UnixMicro(), 10)
		if err := b.client.Add(&memcache.Item{Key: key, Value: []byte(start)}); err != nil && !errors.Is(err, memcache.ErrNotStored) {
			return 0, err
		}
	}
}

// expired is the expiration of an item that is gone at once.
const expired = -1

// swap extends the lock if the ID holds it, or ends it. A renewal and the holder's own call may
// meet: the one that comes second looks again.
func (b *Backend) swap(ctx context.Context, h lock.Hold, ends bool) (bool, error) {
	for {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		item, err := b.client.Get(b.key("lock", h.Name))
		if errors.Is(err, memcache.ErrCacheMiss) {
			return false, nil
		}
		if err != nil {
			return false, unavailable(err)
		}
		id, left, err := parse(item)
		if err != nil || id != h.ID {
			return false, nil
		}
		ttl := max(h.TTL, left)
		if item.Expiration = expired; !ends {
			item.Expiration = seconds(ttl)
		}
		item.Value = value(h.ID, ttl)
		err = b.client.CompareAndSwap(item)
		switch {
		case errors.Is(err, memcache.ErrCASConflict):
			continue
		case errors.Is(err, memcache.ErrNotStored), errors.Is(err, memcache.ErrCacheMiss):
			return false, nil
		}
		return err == nil, unavailable(err)
	}
}

// Extend implements [lock.Backend].
func (b *Backend) Extend(ctx context.Context, h lock.Hold) (bool, error) {
	if err := checkTTL(h.TTL); err != nil {
		return false, err
	}
	ok, err := b.swap(ctx, h, false)
	if !ok || h.Fence == 0 {
		return ok, err
	}
	item, err := b.client.Get(b.key("fence", h.Name))
	if errors.Is(err, memcache.ErrCacheMiss) {
		_, err = b.fence(h.Name)
		return err == nil, unavailable(err)
	}
	if err != nil {
		return false, unavailable(err)
	}
	if n, err := strconv.ParseUint(strings.TrimSpace(string(item.Value)), 10, 64); err == nil && n < h.Fence {
		_, err := b.client.Increment(item.Key, h.Fence-n)
		return err == nil, unavailable(err)
	}
	return true, nil
}

// Release implements [lock.Backend].
func (b *Backend) Release(ctx context.Context, h lock.Hold) (bool, error) {
	return b.swap(ctx, h, true)
}

// Inspect implements [lock.Backend].
func (b *Backend) Inspect(ctx context.Context, name string, _ int) (s lock.State, err error) {
	if err := ctx.Err(); err != nil {
		return s, err
	}
	if item, err := b.client.Get(b.key("fence", name)); err == nil {
		s.Fence, _ = strconv.ParseUint(strings.TrimSpace(string(item.Value)), 10, 64)
	}
	item, err := b.client.Get(b.key("lock", name))
	if errors.Is(err, memcache.ErrCacheMiss) {
		return s, nil
	}
	if err != nil {
		return s, unavailable(err)
	}
	id, left, err := parse(item)
	s.Holders = []lock.Holder{{ID: id, Left: left}}
	return s, err
}

// Watch implements [lock.Backend]: waiters poll.
func (b *Backend) Watch(string) (<-chan struct{}, func()) { return nil, func() {} }
