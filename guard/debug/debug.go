// Package debug shows the work of guards, on a page for people and as JSON for programs.
//
//	page, err := debug.New(debug.Options{})
//	users, err := guard.New[User](store, "users", guard.Policy{TTL: time.Minute, Observer: page})
//	mux.Handle("/debug/stampede", page)
//
// The page shows one process. It changes nothing unless [Options.AllowReset] is set. It
// shows keys and error texts: serve it to operators only, or set [Options.HideKeys].
package debug

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/measure"
)

// Options configure [New]. The zero value of each field means its default.
type Options struct {
	// HideKeys shows no keys and no error texts, whatever the guards' policies say.
	// Policy.HideKeys hides the keys of one guard. Default false.
	HideKeys bool

	// AllowReset adds a button to each paused or quarantined key, which calls
	// [guard.Guard.Reset]. It takes a POST from the page itself, with a token that the
	// page holds. All viewers of the page may then reset keys. Default false.
	AllowReset bool

	// MaxGuards and MaxKeys bound the lists of the page: guards, and for each guard the
	// flights, the stopped keys and the errors. The page tells how many there are.
	// Defaults 50 and 20; at least 1.
	MaxGuards, MaxKeys int
}

// A Page is an observer of guards, stores, budgets and locks, and the HTTP handler that
// shows them. It is safe for concurrent use.
//
// GET answers HTML, or JSON if the request accepts application/json before HTML or asks
// for ?format=json. ?guard=NAME shows one guard. With &key=KEY it also asks the store for the
// key's lease, pause and attempts: those of the whole fleet.
type Page struct {
	opts     Options
	registry measure.Registry
	token    string // that a reset must show
	origin   *http.CrossOriginProtection

	mu     sync.Mutex // guards memory only
	guards map[string]*watched
	timer  *time.Timer // of the next sample; nil: no guard is attached
	alive  int         // guards that are attached
	closed bool
}

var (
	_ cache.Attacher = (*Page)(nil)
	_ http.Handler   = (*Page)(nil)
)

// New returns a page without guards. The error names the options that are out of range.
func New(opts Options) (*Page, error) {
	if opts.MaxGuards == 0 {
		opts.MaxGuards = 50
	}
	if opts.MaxKeys == 0 {
		opts.MaxKeys = 20
	}
	var errs []error
	if opts.MaxGuards < 0 {
		errs = append(errs, fmt.Errorf("debug: Options.MaxGuards is %d, must be at least 1", opts.MaxGuards))
	}
	if opts.MaxKeys < 0 {
		errs = append(errs, fmt.Errorf("debug: Options.MaxKeys is %d, must be at least 1", opts.MaxKeys))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Page{opts: opts, token: rand.Text(), origin: http.NewCrossOriginProtection(), guards: map[string]*watched{}}, nil
}

// Close ends the sampling of the charts. The page goes on to show the guards.
func (p *Page) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	return nil
}

// String is the report in JSON: a Page is an expvar.Var, for expvar.Publish.
func (p *Page) String() string {
	b, err := json.Marshal(p.report(""))
	if err != nil {
		return "null"
	}
	return string(b)
}

// ServeHTTP implements [http.Handler].
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Vary", "Accept")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		p.show(w, r)
	case http.MethodPost:
		p.reset(w, r)
	default:
		h.Set("Allow", "GET, HEAD, POST")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	}
}

//go:embed page.html.tmpl
var files embed.FS

var page = template.Must(template.New("page.html.tmpl").Funcs(template.FuncMap{
	"percent": percent, "ago": ago, "count": count, "id": anchor,
}).ParseFS(files, "page.html.tmpl"))

func (p *Page) show(w http.ResponseWriter, r *http.Request) {
	rep := p.report(r.URL.Query().Get("guard"))
	if q := r.URL.Query(); q.Get("key") != "" && !p.opts.HideKeys {
		rep.Key = p.inspect(r.Context(), q.Get("guard"), q.Get("key"))
	}
	var b bytes.Buffer
	var err error
	if wantsJSON(r) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(&b)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(rep)
	} else {
		nonce := rand.Text()
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; img-src data:; style-src 'nonce-"+nonce+"'; script-src 'nonce-"+nonce+
			"'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'")
		view := struct {
			*Report
			Nonce, Token, Done string
			Search             bool
		}{rep, nonce, "", clean(r.URL.Query().Get("reset")), !p.opts.HideKeys}
		if p.opts.AllowReset {
			view.Token = p.token
		}
		name := "page.html.tmpl"
		if r.URL.Query().Get("part") == "main" { // for the page's script
			name = "part"
		}
		err = page.ExecuteTemplate(&b, name, view)
	}
	if err != nil {
		http.Error(w, "the report could not be written", http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(b.Bytes())
}

// wantsJSON reports whether the request asks for JSON rather than for HTML.
func wantsJSON(r *http.Request) bool {
	if format := r.URL.Query().Get("format"); format != "" {
		return format == "json"
	}
	accept := r.Header.Get("Accept")
	j, h := strings.Index(accept, "application/json"), strings.Index(accept, "text/html")
	return j >= 0 && (h < 0 || j < h)
}

// reset ends the pause or quarantine of the key that the form names.
func (p *Page) reset(w http.ResponseWriter, r *http.Request) {
	if !p.opts.AllowReset {
		http.Error(w, "resetting is off: see debug.Options.AllowReset", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if err := p.origin.Check(r); err != nil || subtle.ConstantTimeCompare([]byte(r.PostFormValue("token")), []byte(p.token)) != 1 {
		http.Error(w, "the request did not come from this page, or the process has restarted: reload the page", http.StatusForbidden)
		return
	}
	name := r.PostForm.Get("guard")
	raw, err := hex.DecodeString(r.PostForm.Get("key"))
	if err != nil {
		http.Error(w, "the key is not in hexadecimal", http.StatusBadRequest)
		return
	}
	key := string(raw)
	if err := p.resetKey(r, name, key); err != nil {
		http.Error(w, "not reset: "+err.Error(), http.StatusConflict)
		return
	}
	http.Redirect(w, r, r.URL.Path+"?reset="+url.QueryEscape(shown(key)), http.StatusSeeOther)
}

func (p *Page) resetKey(r *http.Request, name, key string) error {
	for _, g := range p.registry.Guards() {
		if g.Name != name {
			continue
		}
		for _, live := range g.Live {
			if err := live.Reset(r.Context(), key); err != nil {
				return err
			}
			p.forget(name, key)
			return nil
		}
	}
	return fmt.Errorf("this process has no guard %q", clean(name))
}
