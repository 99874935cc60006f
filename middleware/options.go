package middleware

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// WaitAction says what a request gets that has waited for [Options.WaitTimeout].
type WaitAction byte

const (
	// Unavailable gives it 503 with Retry-After, or a stale response where the
	// stale response's own terms allow that.
	Unavailable WaitAction = iota
	// RunAlone runs the handler for it alone, as it does where responses are
	// private: at most [Options.MaxAlone] of them at once.
	RunAlone
)

// AllHeaders, in [Options.Forward], lets the whole header of the request that
// starts a shared run reach it, so that only Vary tells responses apart. It is
// right for a proxy in front of servers that are strict about Vary.
const AllHeaders = "*"

// Options configure [New]. The zero value of each field means its default, and
// the zero Options shares what handlers say may be shared. Durations are honoured
// to the millisecond.
type Options struct {
	// Name is the same in all processes that share responses: it starts the keys
	// in the store, and is the cache's name in Cache-Status and in events. Letters,
	// digits and "._-". Default "http".
	Name string

	// TTL is how long a response is fresh that says nothing of it: one with status
	// 200, 203, 300, 301 or 308 without max-age, s-maxage or Expires; and one with
	// 404 or 410, but for NegativeTTL at the most. It never overrules private,
	// no-store or no-cache. Default 0: such a response is validated before each use if
	// it has an ETag or a Last-Modified, so that requests which wait share it, and is
	// not shared otherwise.
	TTL time.Duration
	// Stale is how long after that it may be served while it is fetched anew, and
	// instead of an error, if it doesn't say so itself (stale-while-revalidate,
	// stale-if-error) or forbids it (must-revalidate and its like). Default 0.
	Stale time.Duration
	// NegativeTTL bounds TTL for 404 and 410. Default 5 s.
	NegativeTTL time.Duration
	// Rules are other terms for some requests: the first that matches counts.
	Rules []Rule

	// Key returns what else of a request tells responses apart, a tenant's name
	// say, which the shared run may then depend on. Two requests for which it
	// differs never share. Default nothing.
	Key func(*http.Request) string
	// Host is the name of the site, with its port if it has to have one, where the
	// site is the same by whatever name it is asked for: it takes the place of the
	// request's host in keys and in shared runs, and in Purge. Default: each host is
	// a site of its own.
	Host string
	// Query lists the query parameters that tell responses apart, by their decoded
	// names: others are taken away from shared runs. Nil: all of them do.
	Query []string
	// Headers lists request headers that tell responses apart, besides those that
	// Vary names, and that shared runs therefore get. Authorization and Cookie can't
	// be among them.
	Headers []string
	// Cookies lists the cookies that tell responses apart: others are taken away
	// from shared runs. Nil: a request with any cookie counts as personal; empty and
	// not nil: no cookie matters.
	Cookies []string
	// Forward lists request headers that reach shared runs though they are not part
	// of the key: that of the request which starts the run. A response that depends
	// on one has to say so by Vary. Nil: Accept, Accept-Encoding and
	// Accept-Language. [AllHeaders] stands for all but conditions and, where
	// Cookies is set, other cookies.
	Forward []string
	// Credentials lists further request headers that identify somebody. Always:
	// Authorization, Proxy-Authorization, X-Api-Key, X-Auth-Token, X-Access-Token,
	// X-Csrf-Token, X-Amz-Security-Token.
	Credentials []string

	// MaxBody bounds the body that is recorded, in bytes: what is longer streams on
	// and is not stored. Default 1 MiB, at most 64 MiB.
	MaxBody int
	// MaxVariants bounds the variants of one URL that are stored (Vary): further
	// ones run side by side. Default 32.
	MaxVariants int
	// FetchTimeout bounds a run that others wait for. What takes longer goes on for
	// its own client only; a run that has none is cancelled. Default 30 s.
	FetchTimeout time.Duration
	// WaitTimeout bounds how long a request waits for a run of another one. Default
	// FetchTimeout plus 5 s.
	WaitTimeout time.Duration
	// OnWaitTimeout says what it gets then. Default Unavailable.
	OnWaitTimeout WaitAction
	// MaxAlone bounds the runs of RunAlone in this process. Default 32.
	MaxAlone int
	// WhenUnavailable says what happens while the store can't be reached. Default
	// guard.FailOpen: each process shares runs among its own requests, and stores
	// nothing.
	WhenUnavailable guard.WhenUnavailable
	// Near keeps responses in this process as well. Default none.
	Near guard.Near
	// KeepFor is how long a response that has an ETag or a Last-Modified is kept
	// after it went stale, to be validated. Default 1 h; guard.Off doesn't.
	KeepFor time.Duration

	// TagHeaders lists response headers whose values are tags, by which responses
	// can be forgotten together ([Middleware.PurgeTag]): Surrogate-Key or Cache-Tag,
	// say, separated by white space or commas. A response with more than 16 tags, or
	// one of more than 256 bytes, isn't shared. A 304 replaces the tags of the headers
	// that it has, and leaves those of others as they are. Clients get the header too,
	// unless something further out takes it away. Default none.
	TagHeaders []string
	// Tags returns further tags of a response, given the request of its run and its
	// header, neither of which it may change. It must be quick and may be called
	// more than once. Default none.
	Tags func(*http.Request, http.Header) []string

	// StoreSetCookie stores a response with Set-Cookie if it says public or
	// s-maxage. Everybody then gets that cookie. Default: it isn't shared.
	StoreSetCookie bool
	// MakeETag gives stored responses an ETag that have none.
	MakeETag bool
	// Compress stores responses with a text of 1 KiB or more in gzip as well, and
	// answers with that who accepts it. Shared runs then aren't asked for any
	// encoding.
	Compress bool
	// Heuristic makes responses that state no lifetime fresh for a tenth of the
	// time since their Last-Modified, for a day at most (RFC 9111, 4.2.2). TTL goes
	// before it.
	Heuristic bool
	// IgnoreRequestDirectives gives clients no say: Cache-Control in requests, by
	// which they may ask for a run of the handler, is ignored, but for no-store.
	IgnoreRequestDirectives bool
	// Via is this cache's name in Via, as a gateway or proxy has to add. Default
	// none.
	Via string
	// HideCacheStatus leaves Cache-Status out of responses. ShowKey puts the key
	// into it.
	HideCacheStatus, ShowKey bool

	// Policy changes the guard's policy, an Observer or the Lease say, after it has
	// been filled in from these options. TTL, Stale and MaxBytes in it are the
	// middleware's own.
	Policy func(*guard.Policy)
	// Observe is told of each request when it has been answered. It is called on
	// the request's goroutine and must be quick.
	Observe func(Event)
}

// A Rule has other terms for the requests that it matches: all of Pattern and
// Match that are given.
type Rule struct {
	// Pattern is one of [http.ServeMux].
	Pattern string
	Match   func(*http.Request) bool

	// Bypass lets the requests through as if there were no middleware, but for
	// invalidation by unsafe methods.
	Bypass bool
	// TTL and Stale take the place of those in Options.
	TTL, Stale time.Duration
}

// maxMaxBody bounds the MaxBody of Options and of HostPolicy.
const maxMaxBody = 64 << 20

func (o Options) withDefaults() Options {
	def(&o.Name, "http")
	def(&o.NegativeTTL, 5*time.Second)
	def(&o.MaxBody, 1<<20)
	def(&o.MaxVariants, 32)
	def(&o.FetchTimeout, 30*time.Second)
	def(&o.WaitTimeout, o.FetchTimeout+5*time.Second)
	def(&o.MaxAlone, 32)
	def(&o.KeepFor, time.Hour)
	if o.Forward == nil {
		o.Forward = []string{"Accept", "Accept-Encoding", "Accept-Language"}
	}
	return o
}

// def fills in the default of a field that is zero.
func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate returns all that is wrong with options whose defaults are filled in.
// The guard checks what it is given by itself.
func (o Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("middleware: Options."+format, args...))
	}
	span := func(name string, d, least time.Duration) {
		if d < least || d > cache.MaxTTL {
			bad("%s is %v, must be from %v to %v", name, d, least, cache.MaxTTL)
		}
	}
	ttl := func(name string, d time.Duration) {
		if d != 0 {
			span(name, d, time.Millisecond)
		}
	}
	ttl("TTL", o.TTL)
	span("Stale", o.Stale, 0)
	span("NegativeTTL", o.NegativeTTL, time.Millisecond)
	if o.KeepFor != guard.Off {
		span("KeepFor", o.KeepFor, time.Millisecond)
	}
	span("FetchTimeout", o.FetchTimeout, time.Millisecond)
	span("WaitTimeout", o.WaitTimeout, time.Millisecond)
	for i, r := range o.Rules {
		ttl(fmt.Sprintf("Rules[%d].TTL", i), r.TTL)
		span(fmt.Sprintf("Rules[%d].Stale", i), r.Stale, 0)
		if r.Pattern == "" && r.Match == nil {
			bad("Rules[%d] has neither Pattern nor Match", i)
		}
		if _, err := muxFor(r.Pattern); err != nil {
			bad("Rules[%d].Pattern: %v", i, err)
		}
	}
	if o.MaxBody < 1 || o.MaxBody > maxMaxBody {
		bad("MaxBody is %d, must be from 1 to %d", o.MaxBody, maxMaxBody)
	}
	if o.MaxVariants < 1 {
		bad("MaxVariants is %d, must be at least 1", o.MaxVariants)
	}
	if o.MaxAlone < 1 {
		bad("MaxAlone is %d, must be at least 1", o.MaxAlone)
	}
	if o.OnWaitTimeout > RunAlone {
		bad("OnWaitTimeout is %d, must be Unavailable or RunAlone", o.OnWaitTimeout)
	}
	areHeaders := func(field string, names []string) {
		for _, name := range names {
			if !isToken(name) {
				bad("%s has %q, which is no header's name", field, name)
			}
		}
	}
	areHeaders("Headers", o.Headers)
	areHeaders("Forward", o.Forward)
	areHeaders("Credentials", o.Credentials)
	areHeaders("TagHeaders", o.TagHeaders)
	for _, name := range o.Headers {
		switch textproto.CanonicalMIMEHeaderKey(name) {
		case "Authorization", "Cookie", AllHeaders:
			bad("Headers has %q: see Cookies, Credentials and Forward", name)
		}
	}
	for _, name := range o.Forward {
		if isCredential(textproto.CanonicalMIMEHeaderKey(name), o.Credentials) {
			bad("Forward has %q, which identifies somebody", name)
		}
	}
	for _, name := range o.Cookies {
		if !isToken(name) {
			bad("Cookies has %q, which is no cookie's name", name)
		}
	}
	if strings.ContainsAny(o.Host, "/ \r\n\t") {
		bad("Host is %q, must be a host's name, with or without a port", o.Host)
	}
	if o.Via != "" && !isToken(o.Via) {
		bad("Via is %q, must be a token (letters, digits, \"-._\")", o.Via)
	}
	return errors.Join(errs...)
}

func isToken(s string) bool {
	if s == "" {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// isCredential reports whether a header, by its canonical name, identifies
// somebody.
func isCredential(name string, more []string) bool {
	return name == "Cookie" || slices.Contains(credentials, name) ||
		slices.ContainsFunc(more, func(m string) bool { return textproto.CanonicalMIMEHeaderKey(m) == name })
}

// credentials are the headers that identify somebody in any case: see
// Options.Credentials.
var credentials = []string{
	"Authorization", "Proxy-Authorization", "X-Api-Key", "X-Auth-Token", "X-Access-Token", "X-Csrf-Token", "X-Amz-Security-Token",
}
