// Package transport is an [http.RoundTripper] that calls an upstream once for a whole
// fleet. Identical GET and HEAD requests, in all processes, share a call while it is under
// way, and its response for as long as RFC 9111 allows.
//
//	t, err := transport.New(store, transport.Options{})
//	...
//	client := &http.Client{Transport: t}
//
// Nothing else changes for the caller. A stale response is validated with its ETag or
// Last-Modified; a 304 makes it fresh again. The request that made the call reads the
// response as the upstream sends it; requests that waited get it when it is whole. Other
// methods are passed on, and the stored responses that they invalidate are deleted.
// Cache-Status (RFC 9211) on each response says how it came about.
//
// # Which requests share
//
// Requests share only with requests of the same credentials: Authorization, cookies, API
// keys and the like ([Options.Credentials]), in headers and in the URL. In Redis the
// credentials are part of a keyed digest, never in the clear. Each set of credentials has
// a private cache in the sense of RFC 9111, so that a response that says private may be
// stored if its request has credentials. A response that can't be stored answers only its
// own request, and for two minutes the requests for it run side by side. [Options.Shared]
// makes the transport one shared cache.
//
// The stored response is the upstream's, without Set-Cookie: readers of Redis can read
// it. Apart from credentials, request headers tell requests apart only as far as Vary
// names them.
package transport

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
)

// A Transport is a caching [http.RoundTripper]. It is safe for concurrent use. Make one
// for each kind of upstream.
type Transport struct {
	opts  Options
	guard *guard.Guard[*httpcache.Page]
	keys  *keyer
	terms httpcache.Terms
	notes *httpcache.Notes
	apart *pauses // nil: keys contain credentials

	fetchTimeout time.Duration // of a call; the guard's comes later

	mu     sync.Mutex
	lifted map[string]time.Time // by key: the last time of lift
	parted map[string]bool      // the hosts of which parts were requested
}

// New returns a transport on the store. It returns all mistakes in the options, joined.
// Close the transport before the store.
func New(store cache.Store, o Options) (*Transport, error) {
	o = o.withDefaults()
	most, wait := o.MaxBody, o.MaxBudgetWait
	for _, p := range o.Hosts {
		most, wait = max(most, p.MaxBody), max(wait, p.MaxBudgetWait)
	}
	g, err := guard.New[*httpcache.Page](store, o.Name, guard.Policy{
		TTL: indexTTL, Bypass: o.Bypass, FetchTimeout: o.FetchTimeout + wait + timeoutGrace,
		WaitTimeout: o.WaitTimeout + wait, OnWaitTimeout: guard.StaleOrFetch,
		FailClosed: o.FailClosed, MaxUnguarded: o.MaxUnguarded,
		MaxBytes: most + maxHeader, Codec: httpcache.Codec{}, Errors: httpcache.Errors(nil),
		Near: o.Near, Reserve: o.Reserve, Observer: o.Observer,
	})
	if err := errors.Join(err, o.validate()); err != nil {
		if g != nil {
			_ = g.Close()
		}
		return nil, err
	}
	t := &Transport{
		opts: o, guard: g, keys: newKeyer(&o), terms: httpcache.Terms{Keep: o.Keep, EachValidates: true},
		notes: httpcache.NewNotes(), lifted: map[string]time.Time{}, parted: map[string]bool{}, fetchTimeout: o.FetchTimeout + wait,
	}
	if o.Shared {
		t.apart = newPauses(t.keys)
	}
	return t, nil
}

const (
	// timeoutGrace is the time in which a call ends its turn by itself after FetchTimeout.
	timeoutGrace = time.Second
	// indexTTL is the lifetime of the index of a URL's variants.
	indexTTL = 24 * time.Hour
	// maxHeader is room in an entry for all but the body.
	maxHeader = 1 << 20
)

// policyFor is the policy of the request's host.
func (t *Transport) policyFor(req *http.Request) *HostPolicy {
	return t.opts.policyOf(httpcache.CanonicalHost(req.URL.Scheme, req.URL.Host))
}

// Purge deletes the responses that are stored for a GET or HEAD of the request's URL and credentials.
// The response of a call that is under way will not be stored. Errors as of
// [guard.Guard.Delete].
func (t *Transport) Purge(req *http.Request) error { return t.forget(req, t.policyFor(req), "") }

// forget deletes the entries of a URL, except for one key.
func (t *Transport) forget(req *http.Request, p *HostPolicy, except string) error {
	methods := []string{methodPosted, methodPart, http.MethodGet, http.MethodHead} // in this order: see httpcache.BeginBeside
	if !t.opts.StorePost {
		methods = methods[1:]
	}
	var errs []error
	for _, method := range methods {
		like := *req
		if like.Method = method; method == methodPart || method == methodPosted {
			like.Method = http.MethodGet
		}
		custom, ok := customKey(p, &like)
		if !ok {
			continue
		}
		for _, unusual := range []bool{false, true} {
			if unusual && p.TTL == 0 {
				continue
			}
			key, _ := t.keys.key(method, &like, custom, unusual)
			if key == except {
				continue
			}
			errs = append(errs, t.guard.Delete(req.Context(), key)) // the index, and so the variants
		}
	}
	return errors.Join(errs...)
}

// customKey is the result of the policy's Key. If ok is false, nothing is to be stored.
func customKey(p *HostPolicy, req *http.Request) (key string, ok bool) {
	if p.Key == nil {
		return "", true
	}
	key = p.Key(req)
	return key, key != ""
}

// storeTimeout bounds changes of the store that no request waits for.
const storeTimeout = 5 * time.Second

// lift ends a bypass marker and expires a stored page, so that the key's next call is
// made under a lease. It does nothing within a second of the last time, as it also ends
// a call that is under way.
func (t *Transport) lift(key string) {
	if !t.liftDue(key) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	_ = t.guard.Expire(ctx, key)
}

func (t *Transport) liftDue(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.lifted[key]) < time.Second {
		return false
	}
	if len(t.lifted) >= 1024 {
		clear(t.lifted)
	}
	t.lifted[key] = now
	return true
}

// CloseIdleConnections is the base transport's, if it has one.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.opts.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Stats returns the guard's counters in this process. The transport pays for its calls
// by itself: of budgets only Errors.Exhausted is counted.
func (t *Transport) Stats() guard.Stats { return t.guard.Stats() }

// Close ends the shared calls and releases their leases. It does not wait for calls that
// do not heed their context, nor for responses that clients are reading, which they may
// read to the end. Later requests get [guard.ErrClosed]. The base transport stays open.
func (t *Transport) Close() error { return t.guard.Close() }
