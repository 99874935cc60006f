package redisstore_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// hasKeys is a kind of round trips: scripts with so many keys.
func hasKeys(n int) func(redis.Cmder) bool {
	return func(cmd redis.Cmder) bool { args := cmd.Args(); return isScript(cmd) && len(args) > 2 && args[2] == n }
}

// closing closes the store and returns when Close waits, with the channel of its error.
func closing(s *redisstore.Store) <-chan error {
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	synctest.Wait()
	return closed
}

// A process that was no longer watched while it still held a lease would look dead.
func TestCloseReleasesItsLeasesWhileItIsWatched(t *testing.T) {
	g := newGate(hasKeys(2)) // release
	bubble(t, redisstore.Options{}, g, func(t *testing.T, s *redisstore.Store, server *redistest.Embedded) {
		other := opened(t, server.Client(), redisstore.Options{})
		time.Sleep(time.Second) // until its subscription is live
		granted(t, s, "k")
		open := g.shut(&g.way)
		closed := closing(s)
		r := lasting("k")
		for range 3 {
			a := acquire(t.Context(), other, r)
			if a.Verdict != store.Held || a.Unwatched {
				t.Fatalf("while its process is closed the lease is %v, unwatched %v, %v", a.Verdict, a.Unwatched, a.Err)
			}
			r.LastHeld, r.Suspect = a.Holder, a.Holder
			time.Sleep(60 * time.Millisecond)
		}
		open()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if a := acquire(t.Context(), other, r); a.Verdict != store.Granted || a.Lease.TakenOver || a.Lease.Attempt != 1 {
			t.Errorf("after the store was closed: %v, %+v, %v", a.Verdict, a.Lease, a.Err)
		}
	})
}

// A lingering connection is closed a while after its client has closed it, as a server
// may take to notice.
type lingering struct{ net.Conn }

func (c lingering) Close() error {
	time.AfterFunc(200*time.Millisecond, func() { _ = c.Conn.Close() })
	return nil
}

// An acquire may be carried out after its store was closed, before Redis knows that the
// store's connection has ended.
func TestCloseIsNotOvertakenByALateAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redistest.RunEmbeddedInMemory(t)
		o := server.Options()
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return lingering{conn}, err
		}
		client := redis.NewClient(o)
		g := newGate(isAcquire)
		client.AddHook(g)
		s := opened(t, client, redisstore.Options{})
		t.Cleanup(func() {
			_ = client.Close()
			time.Sleep(time.Minute) // until the connections have ended
		})
		time.Sleep(time.Second) // until the subscription is live
		open := g.shut(&g.way)
		r := lasting("k")
		r.Once = true
		go acquire(context.Background(), s, r)
		synctest.Wait()
		closed := closing(s)
		open()
		synctest.Wait()
		if server.Exists("test:{k}:lease") {
			t.Error("the store was closed, and then granted a lease")
		}
		if err := <-closed; err != nil {
			t.Log("Close:", err)
		}
	})
}

// An acquire may be answered while Close gives its token back.
func TestCloseReleasesGrantsItOvertakes(t *testing.T) {
	grants, releases := newGate(isAcquire), newGate(hasKeys(2))
	bubble(t, redisstore.Options{}, grants, func(t *testing.T, s *redisstore.Store, server *redistest.Embedded) {
		answer, release := grants.shut(&grants.ret), releases.shut(&releases.ret)
		answers := make(chan []store.Answer, 1)
		go func() { answers <- s.Acquire(context.Background(), []store.Request{lasting("a"), lasting("b")}) }()
		synctest.Wait()
		if !server.Exists("test:{a}:lease") {
			t.Fatal("the leases were not granted")
		}
		closed := closing(s)
		answer()
		synctest.Wait()
		release()
		for i, a := range <-answers {
			if a.Err == nil {
				t.Errorf("request %d is answered %v by a closed store", i, a.Verdict)
			}
		}
		if err := <-closed; err != nil {
			t.Log("Close:", err)
		}
		if server.Exists("test:{a}:lease") || server.Exists("test:{b}:lease") {
			t.Error("a lease is left behind")
		}
	}, releases)
}

// After a lost fill the lease must still end. After a late fill it must not outlast the fill.
func TestLeaseIsNotRenewedWhileItIsReturned(t *testing.T) {
	g := newGate(hasKeys(5)) // fill
	bubble(t, redisstore.Options{}, g, func(t *testing.T, s *redisstore.Store, server *redistest.Embedded) {
		r := lasting("k")
		r.TTL = 300 * time.Millisecond
		a := acquire(t.Context(), s, r)
		if a.Verdict != store.Granted {
			t.Fatal(a.Verdict, a.Err)
		}
		open := g.shut(&g.way)
		filled := make(chan store.Returned, 1)
		go func() {
			filled <- giveBack(context.Background(), s, store.Return{Lease: a.Lease, Entry: entryOf("v", time.Minute)})
		}()
		synctest.Wait()
		time.Sleep(200 * time.Millisecond) // less than RedisTimeout; the renewal was due after 100 ms
		if left := server.TTL("test:{k}:lease"); left > 100*time.Millisecond {
			t.Errorf("200 ms after it was granted for 300 ms, the lease lasts %v", left)
		}
		open()
		if err := errors.Join((<-filled).Err, s.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A holder learns at its next renewal that another process has ended its lease, and not
// only when the lease would have expired.
func TestLeaseEndedElsewhereIsLostAtItsRenewal(t *testing.T) {
	bubble(t, redisstore.Options{}, nil, func(t *testing.T, s *redisstore.Store, server *redistest.Embedded) {
		other := opened(t, server.Client(), redisstore.Options{})
		l := granted(t, s, "k") // for 20 s
		if err := remove(t.Context(), other, "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if !l.IsLost() {
			t.Error("10 s after its lease of 20 s was ended, the holder does not know")
		}
	})
}
