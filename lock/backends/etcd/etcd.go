// Package etcd keeps the locks of package lock in etcd.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stampedeguard/stampede/lock"
)

// A Backend keeps locks under a prefix. A lock is a key on an etcd lease. The TTL of a lease
// has whole seconds and is at least two or so: a dead holder's lock is free that much later
// than its TTL says. A fence is a key that stays. Make a Backend with [New]. It is safe for
// concurrent use.
type Backend struct {
	client *clientv3.Client
	prefix string
}

var _ lock.Backend = (*Backend)(nil)

// New returns a backend on the client, which stays the caller's. No other program writes
// below the prefix.
func New(client *clientv3.Client, prefix string) *Backend {
	return &Backend{client, prefix}
}

// String names the backend in votes.
func (b *Backend) String() string { return "etcd" }

func (b *Backend) lockKey(name string) string  { return b.prefix + "/lock/" + name }
func (b *Backend) fenceKey(name string) string { return b.prefix + "/fence/" + name }

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: etcd: %w", lock.ErrUnavailable, err)
}

// grantLease makes an etcd lease that does not end before ttl.
func (b *Backend) grantLease(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	lease, err := b.client.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return 0, unavailable(err)
	}
	return lease.ID, nil
}

// revoke ends a lease that no key needs any more; at the latest it ends by itself.
func (b *Backend) revoke(ctx context.Context, id clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = b.client.Revoke(ctx, id)
}

// A view is the content of etcd under a name.
type view struct {
	holder  lock.ID
	held    bool
	lease   clientv3.LeaseID
	lockRev int64
	fence   uint64
	fenced  int64 // revision of the fence; 0: there is none
	cluster uint64
}

func (b *Backend) look(ctx context.Context, name string) (v view, err error) {
	r, err := b.client.Txn(ctx).Then(clientv3.OpGet(b.lockKey(name)), clientv3.OpGet(b.fenceKey(name))).Commit()
	if err != nil {
		return v, unavailable(err)
	}
	v.cluster = r.Header.ClusterId
	if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		v.held, v.lease, v.lockRev = true, clientv3.LeaseID(kvs[0].Lease), kvs[0].ModRevision
		if v.holder, err = lock.ParseID(string(kvs[0].Value)); err != nil {
			return v, foreign(b.lockKey(name), err)
		}
	}
	if kvs := r.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		v.fenced = kvs[0].ModRevision
		if v.fence, err = strconv.ParseUint(string(kvs[0].Value), 10, 64); err != nil {
			return v, foreign(b.fenceKey(name), err)
		}
	}
	return v, nil
}

func foreign(key string, err error) error {
	return fmt.Errorf("%w: %q (delete it, or give the lock another name): %w", lock.ErrForeign, key, err)
}

// unchanged compares both keys with a view.
func (b *Backend) unchanged(name string, v *view) []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(b.lockKey(name)), "=", v.lockRev),
		clientv3.Compare(clientv3.ModRevision(b.fenceKey(name)), "=", v.fenced),
	}
}

// Acquire implements [lock.Backend].
func (b *Backend) Acquire(ctx context.Context, r lock.Request) (lock.Grant, error) {
	if r.Holders != 1 {
		return lock.Grant{}, errors.New("lock: etcd keeps one holder for each name: set Options.Holders to 1")
	}
	for {
		v, err := b.look(ctx, r.Name)
		if err != nil {
			return lock.Grant{}, err
		}
		g := lock.Grant{Holder: v.holder, Server: fmt.Sprintf("etcd %x", v.cluster)}
		if v.held {
			g.Left, err = b.left(ctx, v.lease)
			return g, err
		}
		lease, err := b.grantLease(ctx, r.TTL)
		if err != nil {
			return lock.Grant{}, err
		}
		fence := v.fence + 1
		done, err := b.client.Txn(ctx).If(b.unchanged(r.Name, &v)...).Then(
			clientv3.OpPut(b.lockKey(r.Name), r.ID.String(), clientv3.WithLease(lease)),
			clientv3.OpPut(b.fenceKey(r.Name), strconv.FormatUint(fence, 10)),
		).Commit()
		if err != nil {
			b.revoke(ctx, lease) // which ends a grant that was not answered, too
			return lock.Grant{}, unavailable(err)
		}
		if done.Succeeded {
			g.OK, g.Fence = true, fence
			return g, nil
		}
		b.revoke(ctx, lease)
	}
}

// left is how long a lease lasts.
func (b *Backend) left(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	r, err := b.client.TimeToLive(ctx, id)
	if err != nil {
		return 0, unavailable(err)
	}
	return time.Duration(max(0, r.TTL)) * time.Second, nil
}

// Extend implements [lock.Backend]. The lock moves to a new lease.
func (b *Backend) Extend(ctx context.Context, h lock.Hold) (bool, error) {
	for {
		v, err := b.look(ctx, h.Name)
		if err != nil || !v.held || v.holder != h.ID {
			return false, err
		}
		left, err := b.left(ctx, v.lease)
		if err != nil {
			return false, err
		}
		lease, err := b.grantLease(ctx, max(h.TTL, left+time.Second)) // left was rounded down
		if err != nil {
			return false, err
		}
		puts := []clientv3.Op{clientv3.OpPut(b.lockKey(h.Name), h.ID.String(), clientv3.WithLease(lease))}
		if h.Fence > v.fence {
			puts = append(puts, clientv3.OpPut(b.fenceKey(h.Name), strconv.FormatUint(h.Fence, 10)))
		}
		done, err := b.client.Txn(ctx).If(b.unchanged(h.Name, &v)...).Then(puts...).Commit()
		if err != nil {
			return false, unavailable(err)
		}
		if done.Succeeded {
			b.revoke(ctx, v.lease)
			return true, nil
		}
		b.revoke(ctx, lease)
	}
}

// Release implements [lock.Backend].
func (b *Backend) Release(ctx context.Context, h lock.Hold) (bool, error) {
	key := b.lockKey(h.Name)
	done, err := b.client.Txn(ctx).If(clientv3.Compare(clientv3.Value(key), "=", h.ID.String())).
		Then(clientv3.OpDelete(key, clientv3.WithPrevKV())).Commit()
	if err != nil || !done.Succeeded {
		return false, unavailable(err)
	}
	for _, kv := range done.Responses[0].GetResponseDeleteRange().PrevKvs {
		b.revoke(ctx, clientv3.LeaseID(kv.Lease))
	}
	return true, nil
}

// Inspect implements [lock.Backend].
func (b *Backend) Inspect(ctx context.Context, name string, _ int) (lock.State, error) {
	v, err := b.look(ctx, name)
	s := lock.State{Fence: v.fence}
	if err != nil || !v.held {
		return s, err
	}
	left, err := b.left(ctx, v.lease)
	s.Holders = []lock.Holder{{ID: v.holder, Left: left}}
	return s, err
}

// Watch implements [lock.Backend]. Its goroutine ends with stop.
func (b *Backend) Watch(name string) (<-chan struct{}, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	changed := make(chan struct{}, 1)
	events := b.client.Watch(ctx, b.lockKey(name), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	go func() {
		for range events { // the first one says that the watch has begun
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, cancel
}
