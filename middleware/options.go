package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/store"
)

// A WaitAction is the answer to a request that has waited for [Options.WaitTimeout].
type WaitAction byte

const (
	// Unavailable is 503 with Retry-After, or a stale response if its own terms allow that.
	Unavailable WaitAction = iota
	// RunAlone runs the handler for the request alone, as for private responses: at most
	// [Options.MaxAlone] such runs at once.
	RunAlone
)

// AllHeaders, in [Options.Forward], gives shared runs the whole header of the request that
// starts them, so that only Vary tells responses apart. It is right for a proxy in front
// of servers that are strict about Vary.
const AllHeaders = "*"

// Options configure [New]. The zero value of each field means its default, and the zero
// Options shares the responses of which handlers say that they may be shared. Durations
// are rounded to the millisecond.
type Options struct {
	// # The cache

	// Name starts the keys in the store, and is the cache's name in Cache-Status and in
	// events. It is the same in all processes that share responses: letters, digits and
	// "._-". Default "http".
	Name string
	// Near keeps responses in this process as well. Default none.
	Near guard.Near
	// FailClosed refuses requests while the store does not answer. Without it each process
	// shares runs among its own requests, and stores nothing. At most 256 of its runs go on at
	// once then. A request that finds no place for 2 s is answered as after WaitTimeout
	// (guard.Policy's MaxUnguarded and MaxUnguardedWait).
	FailClosed bool
	// Observer gets the guard's events. Default none.
	Observer cache.Observer
	// Policy changes the guard's policy, the Lease for example, after it was filled in from
	// these options. The middleware then sets TTL, Stale, StaleIfError, MaxBytes and
	// Codec itself.
	Policy func(*guard.Policy)

	// # How long responses live

	// TTL is the lifetime of a response that states none (max-age, s-maxage or Expires),
	// with status 200, 203, 300, 301 or 308; and with 404 or 410, for NegativeTTL at most. It
	// does not overrule private, no-store or no-cache. Default 0: such a response is
	// validated before each use if it has an ETag or a Last-Modified, so that requests which
	// wait share it, and is not shared otherwise.
	TTL time.Duration
	// Stale is the time after that in which a response may be served while it is fetched
	// anew, and instead of an error. The response's own stale-while-revalidate and
	// stale-if-error go first, and must-revalidate and the like forbid it. Default 0.
	Stale time.Duration
	// StaleIfError is Stale for the use instead of an error alone, if it is longer than Stale.
	// Default Stale.
	StaleIfError time.Duration
	// NegativeTTL bounds TTL for 404 and 410. Default 5 s.
	NegativeTTL time.Duration
	// KeepFor is how long a response with an ETag or a Last-Modified is kept after it went
	// stale, to be validated. Default 1 h; guard.Off: it is not.
	KeepFor time.Duration
	// Heuristic makes a response without a lifetime fresh for a tenth of the time since its
	// Last-Modified, for a day at most (RFC 9111, 4.2.2). TTL goes before it.
	Heuristic bool
	// Rules are other terms for some requests. The first that matches counts.
	Rules []Rule

	// # Which requests share

	// Host is the name of the site, with its port if it needs one, if the site is the same
	// by any name that it is asked for. It replaces the request's host in keys, in shared
	// runs and in Purge. Default: each host is a site of its own.
	Host string
	// Query lists the query parameters that tell responses apart, by their decoded names.
	// Others are removed from shared runs. Nil: all parameters do.
	Query []string
	// Headers lists request headers that tell responses apart, besides those in Vary, and
	// that shared runs therefore get. Authorization and Cookie can't be among them.
	Headers []string
	// Cookies lists the cookies that tell responses apart. Others are removed from shared
	// runs: their handler may take the client for one that is not logged in. A response of
	// such a run that can't be shared goes to no client: the request has another run, with
	// all cookies. Nil: a request with any cookie counts as personal; empty and not nil: no
	// cookie matters.
	Cookies []string
	// Key returns further parts of a request that tell responses apart, a tenant's name say,
	// which shared runs may then depend on. Requests with different keys never share.
	// Default none.
	Key func(*http.Request) string
	// Context lists keys of context values that shared runs get from the request that starts
	// them: a router's parameters, say. It must list no key with a value that tells users apart.
	// Always: values of net/http and of profiles, and the span of OpenTelemetry. Runs of
	// requests with credentials have all values. Default none.
	Context []any
	// Forward lists request headers that reach shared runs though they are no part of the
	// key: they are those of the request that starts the run. A response that depends on one
	// has to name it in Vary. Nil: Accept, Accept-Encoding and Accept-Language.
	// [AllHeaders] stands for all but conditions and, if Cookies is set, other cookies.
	Forward []string
	// Credentials lists further request headers that identify a user. Known are
	// Authorization and names with a word such as key, token, secret, auth, session, user,
	// client, account, role or tenant in them. A header in Headers or Forward is none.
	Credentials []string

	// TrustOrigin shares as RFC 9111 allows. Requests with credentials and requests without
	// share one set of pages. A cookie or an API key does not keep a response that states its
	// own lifetime from all of them. A response to a request with Authorization still has to
	// say public, s-maxage or must-revalidate (3.5). Danger: a handler that forgets private on
	// one page of one user shows that page to all users, and a page that was made without
	// credentials is served to users who are logged in unless it says Vary. Default: requests
	// with credentials share only with each other, and only public or s-maxage.
	TrustOrigin bool

	// # Which responses are stored, and how

	// MaxBody bounds a stored body, in bytes. A longer one streams on and is not stored.
	// Default 1 MiB, at most 64 MiB.
	MaxBody int
	// MaxVariants bounds the stored variants of one URL (Vary). A further one takes the place
	// of one that has not been used for long. Default 32.
	MaxVariants int
	// TagHeaders lists response headers with tags, by which responses can be deleted together
	// ([Middleware.PurgeTag]): Surrogate-Key or Cache-Tag, say, separated by white space or
	// commas. A response with more than 16 tags, or one of more than 256 bytes, is not
	// shared. A 304 replaces the tags of the headers that it has, and keeps the others.
	// Clients get the headers, too. Default none.
	TagHeaders []string
	// Tags returns further tags of a response, by the request of its run and its header,
	// neither of which it may change. It must be quick and may be called more than once.
	// Default none.
	Tags func(*http.Request, http.Header) []string
	// StoreSetCookie stores a response with Set-Cookie if it says public or s-maxage. All
	// its clients then get that cookie. Default: the response is not shared.
	StoreSetCookie bool
	// StorePost stores the response to a POST for later GETs of its URL, if it has status 200,
	// says public or s-maxage, states its lifetime, varies on nothing, and its Content-Location
	// is that URL (RFC 9110, 9.3.3). Each POST, and each invalidation, then takes more round
	// trips. Such a response is not stored if it has tags, trailers or a content coding, if
	// Headers, Cookies or Key tell its requests apart, or if Host or Query would change the
	// request for a shared run. Default: it is not stored.
	StorePost bool
	// MakeETag adds an ETag to stored responses that lack one.
	MakeETag bool
	// Compress stores responses with a text of 1 KiB or more in gzip as well, for clients
	// that accept it. Shared runs then get no Accept-Encoding.
	Compress bool

	// Invalidates says which pages a request with an unsafe method invalidates, by the status
	// of its response, which is 2xx or 3xx. It must be quick. A handler that answers
	// unauthorised requests so, by a redirect say, needs it. Default: AllPages (RFC 9111,
	// 4.4), and NoPages if the response is a redirect to a login page, by its words.
	Invalidates func(r *http.Request, status int) Scope
	// MaxPages bounds the pages that this process keeps in the store, with all their
	// variants. A further page replaces the page that this process stored or served longest
	// ago. MaxPages bounds the memory that unique queries take. Each process has a bound of
	// its own. Default 0: none.
	MaxPages int

	// # How long a request waits

	// FetchTimeout bounds a run that other requests wait for. A longer one goes on for the
	// clients that read its body by then; without any it is cancelled. Default 30 s.
	FetchTimeout time.Duration
	// WaitTimeout bounds the wait of a request for the run of another one. Default
	// FetchTimeout plus 5 s.
	WaitTimeout time.Duration
	// OnWaitTimeout is the answer after that. Default Unavailable.
	OnWaitTimeout WaitAction
	// MaxAlone bounds the runs of RunAlone in this process. A request that waits for another
	// WaitTimeout is answered 503. Default 32.
	MaxAlone int

	// # Directives and reports

	// IgnoreRequestDirectives ignores the Cache-Control of requests, by which clients can ask
	// for a run of the handler, except for no-store.
	IgnoreRequestDirectives bool
	// Via is this cache's name in Via, which gateways and proxies have to add. Default none.
	Via string
	// HideCacheStatus leaves Cache-Status out of responses. ShowKey adds the key to it.
	HideCacheStatus, ShowKey bool
	// Observe is called with each request when it has been answered, on the request's
	// goroutine. It must be quick.
	Observe func(Event)
}

// A Rule has other terms for the requests that it matches, by Pattern, Match or both.
type Rule struct {
	// Pattern is one of [http.ServeMux]. Rules see the host in lower case, without the
	// scheme's port and a dot at its end.
	Pattern string
	Match   func(*http.Request) bool

	// Bypass passes the requests on as if there were no middleware. Unsafe methods still
	// invalidate pages.
	Bypass bool
	// TTL, Stale and StaleIfError replace those in Options.
	TTL, Stale, StaleIfError time.Duration
	// Headers, Cookies and Key replace those in Options, unless they are nil.
	Headers []string
	Cookies []string
	Key     func(*http.Request) string
}

func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, "http")
	o.NegativeTTL = cmp.Or(o.NegativeTTL, 5*time.Second)
	o.MaxBody = cmp.Or(o.MaxBody, 1<<20)
	o.MaxVariants = cmp.Or(o.MaxVariants, 32)
	o.FetchTimeout = cmp.Or(o.FetchTimeout, 30*time.Second)
	o.WaitTimeout = cmp.Or(o.WaitTimeout, o.FetchTimeout+5*time.Second)
	o.MaxAlone = cmp.Or(o.MaxAlone, 32)
	o.KeepFor = cmp.Or(o.KeepFor, time.Hour)
	if o.Forward == nil {
		o.Forward = []string{"Accept", "Accept-Encoding", "Accept-Language"}
	}
	return o
}

// validate returns all mistakes in options with filled-in defaults, except those that
// guard.New finds.
func (o Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("middleware: Options."+format, args...))
	}
	span := func(name string, d, least time.Duration) {
		if d < least || d > store.MaxTTL {
			bad("%s is %v, must be from %v to %v", name, d, least, store.MaxTTL)
		}
	}
	ttl := func(name string, d time.Duration) {
		if d != 0 {
			span(name, d, time.Millisecond)
		}
	}
	areHeaders := func(field string, names []string) {
		for _, name := range names {
			if !isToken(name) {
				bad("%s has %q, which is not a header's name", field, name)
			}
		}
	}
	areKeyHeaders := func(field string, names []string) {
		areHeaders(field, names)
		for _, name := range names {
			switch textproto.CanonicalMIMEHeaderKey(name) {
			case "Authorization", "Cookie", AllHeaders:
				bad("%s has %q: see Cookies, Credentials and Forward", field, name)
			}
		}
	}
	areCookies := func(field string, names []string) {
		for _, name := range names {
			if !isToken(name) {
				bad("%s has %q, which is not a cookie's name", field, name)
			}
		}
	}
	ttl("TTL", o.TTL)
	span("Stale", o.Stale, 0)
	span("StaleIfError", o.StaleIfError, 0)
	span("NegativeTTL", o.NegativeTTL, time.Millisecond)
	if o.KeepFor != guard.Off {
		span("KeepFor", o.KeepFor, time.Millisecond)
	}
	span("FetchTimeout", o.FetchTimeout, time.Millisecond)
	span("WaitTimeout", o.WaitTimeout, time.Millisecond)
	for i, r := range o.Rules {
		ttl(fmt.Sprintf("Rules[%d].TTL", i), r.TTL)
		span(fmt.Sprintf("Rules[%d].Stale", i), r.Stale, 0)
		span(fmt.Sprintf("Rules[%d].StaleIfError", i), r.StaleIfError, 0)
		if r.Pattern == "" && r.Match == nil {
			bad("Rules[%d] has neither Pattern nor Match", i)
		}
		areKeyHeaders(fmt.Sprintf("Rules[%d].Headers", i), r.Headers)
		areCookies(fmt.Sprintf("Rules[%d].Cookies", i), r.Cookies)
		if _, err := muxFor(r.Pattern); err != nil {
			bad("Rules[%d].Pattern: %v", i, err)
		}
	}
	if o.MaxBody < 1 || o.MaxBody > httpcache.MaxBody {
		bad("MaxBody is %d, must be from 1 to %d", o.MaxBody, httpcache.MaxBody)
	}
	if o.MaxVariants < 1 {
		bad("MaxVariants is %d, must be at least 1", o.MaxVariants)
	}
	if o.MaxPages < 0 {
		bad("MaxPages is %d, must not be negative", o.MaxPages)
	}
	if o.MaxAlone < 1 {
		bad("MaxAlone is %d, must be at least 1", o.MaxAlone)
	}
	if o.OnWaitTimeout > RunAlone {
		bad("OnWaitTimeout is %d, must be Unavailable or RunAlone", o.OnWaitTimeout)
	}
	areKeyHeaders("Headers", o.Headers)
	areCookies("Cookies", o.Cookies)
	areHeaders("Forward", o.Forward)
	areHeaders("Credentials", o.Credentials)
	areHeaders("TagHeaders", o.TagHeaders)
	for _, name := range o.Forward {
		if isCredential(textproto.CanonicalMIMEHeaderKey(name), o.Credentials) {
			bad("Forward has %q, which identifies a user", name)
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

// isCredential reports whether a header, by its canonical name, is a credential.
func isCredential(name string, more []string) bool {
	return name == "Cookie" || slices.Contains(credentials, name) ||
		slices.ContainsFunc(more, func(m string) bool { return textproto.CanonicalMIMEHeaderKey(m) == name })
}

// credentials are the headers that identify a user even if an option names them as harmless.
var credentials = []string{
	"Authorization", "Proxy-Authorization", "X-Api-Key", "X-Auth-Token", "X-Access-Token", "X-Csrf-Token", "X-Amz-Security-Token",
}
