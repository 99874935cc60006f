package transport

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/nils"
	"github.com/stampedeguard/stampede/internal/store"
)

var _ guard.Budget = (*budget.Budget)(nil) // the type that HostPolicy.Budget is made for

// Options configure [New]. The zero value of each field means its default.
type Options struct {
	// # The calls

	// Base makes the calls. The transport does not see additions by Base: if it signs
	// requests, or has a client certificate, the upstream answers it as a user, and
	// transports for others need another Name, or they share its responses. An adder of
	// credentials (an oauth2.Transport, say) should have this transport as its base, and not
	// the other way round. Default [http.DefaultTransport].
	Base http.RoundTripper
	// FetchTimeout bounds a call that other requests wait for, until the end of its body.
	// After that, the request that made the call reads on by itself. Default 30 s.
	FetchTimeout time.Duration
	// WaitTimeout bounds the wait of a request for another's call. After that the request
	// makes its own. Default FetchTimeout plus 5 s.
	WaitTimeout time.Duration
	// MaxPause bounds the pause that an upstream may ask for (Retry-After). Default 15 min.
	MaxPause time.Duration

	// # Storing and sharing

	// Name tells transports on one store apart, and is part of their keys. Transports of the
	// same name share their entries, so it is the same in all processes of a fleet: letters,
	// digits and "._-". Default "transport".
	Name string
	// Shared lets requests share across credentials, by the rules of shared caches: a
	// response to a request with credentials is stored only if it says public or s-maxage,
	// and a private one never. A pause that the upstream asks one user for is that user's,
	// in this process. Default: requests share only with requests
	// of the same credentials, by the rules of private caches.
	Shared bool
	// Credentials are further headers that identify a user. Known are Authorization, Cookie,
	// and names with a word such as key, token, secret, auth, session, user, client, account,
	// project, role or tenant in them. An unsafe request invalidates the responses for
	// its own credentials: a header that only such requests have, as X-CSRF-Token, belongs
	// into Harmless.
	Credentials []string
	// Harmless are headers that look like credentials by their name and are none.
	Harmless []string
	// Secret keys the digests that stand for URLs and credentials in Redis; at least 16
	// bytes, the same in all processes. Without it they are keyed by Name: a reader of Redis
	// can then test a guess of a URL or a credential, which is hopeless for random tokens and
	// feasible for passwords.
	Secret []byte
	// StoreSetCookie stores Set-Cookie, so that all requests that share the response get it.
	// Default: only the request that made the call gets it, also with a 304. A refresh in
	// the background has no such request.
	StoreSetCookie bool
	// StorePost stores the response to a POST for later GETs of its URL, once its client has
	// read it to the end. The response has status 200, states its lifetime, varies on nothing,
	// sets no cookie, and its Content-Location is that URL (RFC 9110, 9.3.3). Without
	// credentials, or with Shared, it says public or s-maxage. Each POST, and each
	// invalidation, then takes more round trips. All transports of one Name have the same
	// StorePost. Default: it is not stored.
	StorePost bool
	// Heuristic makes a response with Last-Modified and no lifetime fresh for a tenth of
	// the time since, at most for a day. Default: it is validated.
	Heuristic bool
	// Keep is how long a response with an ETag or Last-Modified is kept after it went stale,
	// to be validated. Default 1 h; [guard.Off]: it is not.
	Keep time.Duration
	// Bypass is how long the requests for a response that can't be stored run side by side,
	// without waiting for one another. It ends early with a response that can be stored.
	// Default 2 min.
	Bypass time.Duration
	// Near keeps responses in this process. Default none.
	Near guard.Near

	// # Without Redis

	// FailClosed returns an error while Redis does not answer. Without it each process calls
	// for itself, once for identical requests.
	FailClosed bool
	// MaxUnguarded bounds the calls of a process at such a time. Default 256.
	MaxUnguarded int
	// Reserve bounds the memory of the responses that this process keeps for such a time. Its
	// MaxBytes is 32 MiB by default; [guard.Off] keeps none, and then no response is served
	// that another process has deleted meanwhile.
	Reserve guard.Reserve

	// # Reports

	// CacheStatus is the cache's name in the Cache-Status of responses. Default "stampede".
	CacheStatus string
	// Observer gets the guard's events. Keys in events are digests. Default none.
	Observer cache.Observer

	// # The upstreams

	// HostPolicy is the policy of hosts that Hosts does not name, and the default of those
	// that it names.
	HostPolicy
	// Hosts have policies of their own. A field that is not set there has the value of
	// HostPolicy. Names are as in URLs, with the port if it isn't the scheme's:
	// "api.example.com", "10.0.0.7:8080"; or "*.example.com" for all hosts below it. The
	// longest name that matches counts.
	Hosts map[string]HostPolicy
}

// A HostPolicy says how one upstream is called. In [Options.Hosts] a field that is not set
// has the value of [Options.HostPolicy]. [guard.Off] in a duration, and a negative
// Retry.Max, stand for none there. A host without the Budget, Key, Cost or Priority of the
// others needs those to be set for the others by name.
type HostPolicy struct {
	// TTL is how long a response is fresh that states no lifetime. Such a response is shared
	// only by requests with equal headers, apart from a few that are known to be harmless
	// and those in [Options.Harmless]. Default 0: it is validated if it can be, and not
	// stored otherwise.
	TTL time.Duration
	// Stale is how long after that a response that says nothing of it
	// (stale-while-revalidate) is served while it is validated in the background.
	// Default 0.
	Stale time.Duration
	// StaleIfError is how long a response that says nothing of it is served when the
	// upstream fails. Default 0.
	StaleIfError time.Duration

	// Key tells requests apart in place of their URL, if parts of that mean nothing. Method
	// and credentials count all the same, also those in the URL's userinfo and query, but
	// not those in its path. If the key is empty, the request is passed on and nothing is
	// stored. Key must not change the request. Default: the URL.
	Key func(*http.Request) string

	// MaxBody bounds a body that is stored, in bytes. A longer one streams through.
	// Default 1 MiB, at most 64 MiB.
	MaxBody int

	// Retry is for idempotent requests. Default: they are sent once.
	Retry Retry

	// Budget pays for all calls to the upstream: for each attempt, and for calls that are
	// not cached, too. If it is exhausted, a stale response is served if there is one and
	// nothing forbids it. Else the call waits for MaxBudgetWait, as far as its request's
	// deadline allows and while a request waits for it. Else the request fails with a
	// [*guard.ExhaustedError]. A [budget.Budget] also learns the upstream's limits from the
	// responses of hosts that [Options.Hosts] names: a redirect may lead to any other, which
	// could stop all calls. Its MaxInFlight counts a call until its body has ended or is closed, or
	// its request's context has ended; for a day at most. Default none.
	Budget guard.Budget
	// MaxBudgetWait bounds the wait of a call for its budget. Default 0: it does not wait.
	MaxBudgetWait time.Duration
	// Priority is that of calls that a request waits for. Default [guard.Normal]; refreshes
	// in the background are always [guard.Background].
	Priority guard.Priority
	// Cost is the cost of a call in the budget's units: an estimate before it, with a nil
	// response, and the cost when the response's header has come. It must not read the
	// body. Default 1.
	Cost func(*http.Request, *http.Response) int

	named bool // it is one of Options.Hosts
}

// Retry repeats a request with GET, HEAD, OPTIONS, TRACE, PUT or DELETE, or with an
// Idempotency-Key, if it has no body or one that can be read again. A request is repeated
// if it got no answer, or 429, 502, 503 or 504. Delays are random between 0 and a bound
// that doubles ("full jitter"). A Retry-After is kept to instead, if MaxElapsed has room
// for it. Other requests in the fleet wait for one of the attempts, too.
type Retry struct {
	Max        int           // further attempts after the first. Default 0
	Base       time.Duration // the first delay's bound. Default 100 ms
	MaxDelay   time.Duration // the bound doubles up to this. Default 5 s
	MaxElapsed time.Duration // from the first attempt to the last delay's end. Default 15 s
}

func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, "transport")
	if o.Base == nil {
		o.Base = http.DefaultTransport
	}
	o.Keep = cmp.Or(o.Keep, time.Hour)
	o.Bypass = cmp.Or(o.Bypass, 2*time.Minute)
	o.MaxPause = cmp.Or(o.MaxPause, 15*time.Minute)
	o.FetchTimeout = cmp.Or(o.FetchTimeout, 30*time.Second)
	o.WaitTimeout = cmp.Or(o.WaitTimeout, o.FetchTimeout+5*time.Second)
	o.MaxUnguarded = cmp.Or(o.MaxUnguarded, 256)
	o.CacheStatus = cmp.Or(o.CacheStatus, "stampede")
	hosts := make(map[string]HostPolicy, len(o.Hosts))
	for name, p := range o.Hosts {
		p = p.inherit(&o.HostPolicy).withDefaults()
		p.named = true
		hosts[strings.ToLower(name)] = p
	}
	o.Hosts, o.HostPolicy = hosts, o.HostPolicy.withDefaults()
	return o
}

// inherit sets the fields that are not set to those of another policy.
func (p HostPolicy) inherit(from *HostPolicy) HostPolicy {
	p.TTL, p.Stale, p.StaleIfError = cmp.Or(p.TTL, from.TTL), cmp.Or(p.Stale, from.Stale), cmp.Or(p.StaleIfError, from.StaleIfError)
	p.MaxBody = cmp.Or(p.MaxBody, from.MaxBody)
	p.MaxBudgetWait, p.Priority = cmp.Or(p.MaxBudgetWait, from.MaxBudgetWait), cmp.Or(p.Priority, from.Priority)
	r, f := &p.Retry, &from.Retry
	r.Max, r.Base = cmp.Or(r.Max, f.Max), cmp.Or(r.Base, f.Base)
	r.MaxDelay, r.MaxElapsed = cmp.Or(r.MaxDelay, f.MaxDelay), cmp.Or(r.MaxElapsed, f.MaxElapsed)
	if p.Key == nil {
		p.Key = from.Key
	}
	if p.Budget == nil {
		p.Budget = from.Budget
	}
	if p.Cost == nil {
		p.Cost = from.Cost
	}
	for _, d := range []*time.Duration{&p.TTL, &p.Stale, &p.StaleIfError, &p.MaxBudgetWait} {
		if *d == guard.Off {
			*d = 0
		}
	}
	r.Max = max(r.Max, 0)
	return p
}

func (p HostPolicy) withDefaults() HostPolicy {
	p.MaxBody = cmp.Or(p.MaxBody, 1<<20)
	p.Retry.Base = cmp.Or(p.Retry.Base, 100*time.Millisecond)
	p.Retry.MaxDelay = cmp.Or(p.Retry.MaxDelay, max(5*time.Second, p.Retry.Base))
	p.Retry.MaxElapsed = cmp.Or(p.Retry.MaxElapsed, 15*time.Second)
	return p
}

// validate returns all mistakes in options with filled-in defaults, except those that
// guard.New finds.
func (o Options) validate() error {
	errs := []error{o.HostPolicy.validate("")}
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("transport: Options."+format, args...))
	}
	if nils.Is(o.Base) {
		bad("Base is a nil %T (leave the field unset for http.DefaultTransport)", o.Base)
	}
	if n := len(o.Secret); n > 0 && n < 16 {
		bad("Secret has %d bytes, must have at least 16, or none", n)
	}
	if o.Keep != guard.Off && (o.Keep < time.Millisecond || o.Keep > store.MaxTTL) {
		bad("Keep is %v, must be from 1ms to %v, or guard.Off", o.Keep, store.MaxTTL)
	}
	if o.MaxPause < time.Millisecond || o.MaxPause > store.MaxTTL {
		bad("MaxPause is %v, must be from 1ms to %v", o.MaxPause, store.MaxTTL)
	}
	for _, name := range append(append([]string(nil), o.Credentials...), o.Harmless...) {
		if name == "" || strings.ContainsAny(name, " \t\r\n:,") {
			bad("Credentials and Harmless have the name %q, which no header has", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Hosts)) {
		if rest := strings.TrimPrefix(name, "*."); rest == "" || strings.ContainsAny(rest, "*/ ") {
			bad("Hosts has the name %q, must be a host, or *. and a host", name)
		}
		errs = append(errs, o.Hosts[name].validate(fmt.Sprintf("Hosts[%q].", name)))
	}
	return errors.Join(errs...)
}

func (p HostPolicy) validate(where string) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("transport: Options."+where+format, args...))
	}
	for _, d := range []struct {
		name string
		is   time.Duration
	}{
		{"TTL", p.TTL},
		{"Stale", p.Stale},
		{"StaleIfError", p.StaleIfError},
		{"MaxBudgetWait", p.MaxBudgetWait},
		{"Retry.Base", p.Retry.Base},
		{"Retry.MaxElapsed", p.Retry.MaxElapsed},
	} {
		if d.is < 0 || d.is > store.MaxTTL {
			bad("%s is %v, must be from 0 to %v", d.name, d.is, store.MaxTTL)
		}
	}
	if p.Retry.MaxDelay < p.Retry.Base {
		bad("Retry.MaxDelay is %v, must be at least Retry.Base (%v)", p.Retry.MaxDelay, p.Retry.Base)
	}
	if p.Budget != nil && nils.Is(p.Budget) {
		bad("Budget is a nil %T (check the error of the call that made it)", p.Budget)
	}
	if p.Priority > guard.Critical {
		bad("Priority is %d, must be Normal, Background or Critical", p.Priority)
	}
	if p.Retry.Max < 0 {
		bad("Retry.Max is %d, must not be negative", p.Retry.Max)
	}
	if p.MaxBody < 0 || p.MaxBody > httpcache.MaxBody {
		bad("MaxBody is %d, must be from 1 to %d", p.MaxBody, httpcache.MaxBody)
	}
	return errors.Join(errs...)
}

// policyOf is the policy of the longest name that matches.
func (o *Options) policyOf(host string) *HostPolicy {
	if len(o.Hosts) == 0 {
		return &o.HostPolicy
	}
	if p, ok := o.Hosts[host]; ok {
		return &p
	}
	for rest := host; ; {
		_, after, ok := strings.Cut(rest, ".")
		if !ok {
			return &o.HostPolicy
		}
		if p, ok := o.Hosts["*."+after]; ok {
			return &p
		}
		rest = after
	}
}
