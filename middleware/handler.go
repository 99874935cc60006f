package middleware

import (
	"net/http"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// Wrap puts the middleware in front of a handler.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	t := m.site.termsFor(r)
	a := &reply{m: m, next: next, w: w, asked: &asked{Request: r, site: m.site, terms: t}}
	a.event = Event{Request: r, began: time.Now()}
	defer a.report()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		a.otherMethod()
		return
	}
	if t.bypass || bypasses(r) {
		a.pass(rfc9111.FwdBypass, "")
		return
	}
	a.asked, a.says = newAsked(m.site, r, t), m.site.says(r.Header)
	c := &call{m: m, asked: a.asked, says: a.says, out: a}
	alone := c.says.NoStore || hasPrecondition(c.asked.Header)
	if alone || r.Method == http.MethodHead || c.says.OnlyIfCached || c.says.MaxStale.Set {
		served, stored := c.lookUp()
		alone = alone || stored && r.Method == http.MethodHead // only a herd without a page is worth a GET
		switch {
		case served:
			return
		case c.says.OnlyIfCached:
			a.notStored()
			return
		case alone:
			a.pass(rfc9111.FwdURIMiss, "")
			return
		}
	}
	c.answer()
}
