package middleware

import (
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
	"github.com/stampedeguard/stampede/internal/nils"
)

var _ guard.Budget = (*budget.Budget)(nil) // which HostPolicy.Budget is made for

// TransportOptions are a [Transport]'s. The zero value of each field means its
// default.
type TransportOptions struct {
	// Name tells transports on one store apart, and is part of their keys. Those
	// of the same name share what they store, so it is the same in all processes
	// of a fleet: letters, digits and "._-". Default "transport".
	Name string

	// Base makes the calls. What it adds to them isn't seen: if it signs requests, or
	// has a client certificate, so that the upstream answers it as somebody, then
	// transports for others need another Name, or would share its responses. Let
	// what adds credentials (an oauth2.Transport, say) have this transport as its
	// base, and not the other way round. Default [http.DefaultTransport].
	Base http.RoundTripper

	// Secret keys the digests that stand for URLs and credentials in Redis; 16
	// bytes at least, the same in all processes. Without it they are keyed by Name:
	// who can read Redis can then test whether a guess of a URL or a credential is
	// right, which is hopeless for random tokens and feasible for passwords.
	Secret []byte

	// Shared lets requests share whatever their credentials, by the rules for
	// shared caches: a response to a request with credentials is kept only if it
	// says public, s-maxage or must-revalidate, and a private one never. Default:
	// requests share only with those of the same credentials, by the rules for
	// private caches.
	Shared bool

	// Credentials are headers that say who asks, beyond those that are known or
	// look like it: Authorization, Cookie, and names with a word such as key, token,
	// secret, auth, session, user, client, account, project or tenant in them. An
	// unsafe request makes be forgotten what is stored for the same ones: if only
	// such requests have one, as an X-CSRF-Token, list it as Harmless.
	Credentials []string
	// Harmless are headers whose names look like it and that mean nothing.
	Harmless []string

	// StoreSetCookie keeps Set-Cookie in what is stored, so that it is given to
	// everybody who shares it. Default: only the call that was made gets it, also that
	// of a 304; of a refresh in the background nobody does.
	StoreSetCookie bool

	// Heuristic: a response with Last-Modified that states no lifetime is fresh for
	// a tenth of the time since, at most for a day. Default: it is validated.
	Heuristic bool

	// Keep is how long a response with an ETag or Last-Modified is kept past its
	// freshness, to be validated. Default 1 h; [guard.Off]: it isn't.
	Keep time.Duration

	// Bypass is how long the requests for a response that can't be stored go side
	// by side, without waiting for one another; it ends early with the first that
	// can. Default 2 min.
	Bypass time.Duration

	// MaxPause bounds how long an upstream that answers 429 or 503 is believed that
	// it is to be left alone. Default 15 min.
	MaxPause time.Duration

	// FetchTimeout bounds a call whose response others wait for, until its body's
	// end. The request that made it goes on reading after that, by itself. Default 30 s.
	FetchTimeout time.Duration

	// WaitTimeout bounds how long a request waits for another's call; then it makes
	// its own. Default FetchTimeout plus 5 s.
	WaitTimeout time.Duration

	// WhenUnavailable says what happens while Redis is away. Default
	// [guard.FailOpen]: each process calls for itself, once for identical requests,
	// and at most MaxUnguarded calls at once.
	WhenUnavailable guard.WhenUnavailable
	// MaxUnguarded: see WhenUnavailable. Default 256.
	MaxUnguarded int

	// Near keeps responses in this process. Default none.
	Near guard.Near

	// Observer is told what the guard does. Keys in events are digests. Default none.
	Observer guard.Observer

	// CacheStatus is the cache's name in the Cache-Status of responses. Default
	// "stampede".
	CacheStatus string

	// HostPolicy is for hosts that Hosts doesn't name.
	HostPolicy

	// Hosts have policies of their own, which take nothing from HostPolicy. Names
	// are as in URLs, with the port if it isn't the scheme's: "api.example.com",
	// "10.0.0.7:8080"; or "*.example.com" for all below it. The longest that matches
	// counts.
	Hosts map[string]HostPolicy
}

// A HostPolicy is how one upstream is called.
type HostPolicy struct {
	// TTL is how long a response is fresh that states no lifetime. Default 0: it is
	// validated if it can be, and not stored otherwise.
	TTL time.Duration
	// Stale is how long after that a response that doesn't say itself
	// (stale-while-revalidate) is served while it is validated in the background.
	// Default 0.
	Stale time.Duration
	// StaleIfError is how long a response that doesn't say itself is served when
	// the upstream fails. Default 0.
	StaleIfError time.Duration

	// Key tells requests apart in place of their URL, for those who know that some
	// of it means nothing. Method and credentials count all the same, those in the
	// URL's userinfo and query, too; not those in its path. The empty key means that
	// a request is passed on and nothing stored. It is called with a request that it
	// must not change. Default: the URL.
	Key func(*http.Request) string

	// MaxBody bounds a body that is stored, in bytes. A longer one streams through.
	// Default 1 MiB, at most 64 MiB.
	MaxBody int

	// Retry is for idempotent requests. Default: none are made.
	Retry Retry

	// Budget is what all calls to the upstream are paid from: each attempt, and
	// those that aren't cached, too. With nothing left, a stale response is served if
	// there is one and nothing forbids it; else the call waits for MaxBudgetWait, if
	// its request's deadline allows and while anybody waits for it; else the request
	// fails with a [*guard.ExhaustedError]. A [budget.Budget] is also told what
	// responses say of the upstream's limits, and its MaxInFlight counts a call until
	// its body has ended or is closed, or its request's context has ended; for a day at
	// most. Default none.
	Budget guard.Budget
	// MaxBudgetWait: see Budget. Default 0: a call doesn't wait.
	MaxBudgetWait time.Duration
	// Priority is that of calls that somebody waits for. Default [guard.Normal];
	// refreshes in the background are always [guard.Background].
	Priority guard.Priority
	// Cost of a call in the budget's units: an estimate before it, with a nil
	// response, and what it did cost when the response's header has come. It must
	// not read the body. Default 1.
	Cost func(*http.Request, *http.Response) int
}

// Retry repeats a request with GET, HEAD, OPTIONS, TRACE, PUT or DELETE, or with an
// Idempotency-Key, whose body, if it has one, can be read again. It repeats what
// got no answer, and what got 429, 502, 503 or 504. Delays are random between 0 and
// a bound that doubles ("full jitter"); a Retry-After is kept to instead, if
// MaxElapsed has room for it. No request holds up others in the fleet for it: they
// wait for one of them.
type Retry struct {
	Max        int           // times, after the first. Default 0
	Base       time.Duration // the first delay's bound. Default 100 ms
	MaxDelay   time.Duration // the bound doubles up to this. Default 5 s
	MaxElapsed time.Duration // from the first call to the last delay's end. Default 15 s
}

func (o TransportOptions) withDefaults() TransportOptions {
	def(&o.Name, "transport")
	if o.Base == nil {
		o.Base = http.DefaultTransport
	}
	def(&o.Keep, time.Hour)
	def(&o.Bypass, 2*time.Minute)
	def(&o.MaxPause, 15*time.Minute)
	def(&o.FetchTimeout, 30*time.Second)
	def(&o.WaitTimeout, o.FetchTimeout+5*time.Second)
	def(&o.MaxUnguarded, 256)
	def(&o.CacheStatus, "stampede")
	o.HostPolicy = o.HostPolicy.withDefaults()
	hosts := make(map[string]HostPolicy, len(o.Hosts))
	for name, p := range o.Hosts {
		hosts[strings.ToLower(name)] = p.withDefaults()
	}
	o.Hosts = hosts
	return o
}

func (p HostPolicy) withDefaults() HostPolicy {
	def(&p.MaxBody, 1<<20)
	def(&p.Retry.Base, 100*time.Millisecond)
	def(&p.Retry.MaxDelay, max(5*time.Second, p.Retry.Base))
	def(&p.Retry.MaxElapsed, 15*time.Second)
	return p
}

// validate returns all that is wrong with options whose defaults are filled in,
// but for what guard.New finds.
func (o TransportOptions) validate() error {
	errs := []error{o.HostPolicy.validate("")}
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("middleware: TransportOptions."+format, args...))
	}
	if nils.Is(o.Base) {
		bad("Base is a nil %T (leave the field unset for http.DefaultTransport)", o.Base)
	}
	if n := len(o.Secret); n > 0 && n < 16 {
		bad("Secret has %d bytes, must have at least 16, or none", n)
	}
	if o.Keep != guard.Off && (o.Keep < time.Millisecond || o.Keep > cache.MaxTTL) {
		bad("Keep is %v, must be from 1ms to %v, or guard.Off", o.Keep, cache.MaxTTL)
	}
	if o.MaxPause < time.Millisecond || o.MaxPause > cache.MaxTTL {
		bad("MaxPause is %v, must be from 1ms to %v", o.MaxPause, cache.MaxTTL)
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
		errs = append(errs, fmt.Errorf("middleware: TransportOptions."+where+format, args...))
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
		if d.is < 0 || d.is > cache.MaxTTL {
			bad("%s is %v, must be from 0 to %v", d.name, d.is, cache.MaxTTL)
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
	if p.MaxBody < 0 || p.MaxBody > maxMaxBody {
		bad("MaxBody is %d, must be from 1 to %d", p.MaxBody, maxMaxBody)
	}
	return errors.Join(errs...)
}

// hostPolicy is the policy of the longest name that matches.
func (o *TransportOptions) hostPolicy(host string) *HostPolicy {
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
