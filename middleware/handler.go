package middleware

import (
	"net/http"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// Wrap puts the middleware in front of a handler.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// A visit is all that there is about one request. It is one allocation, as each hit pays for
// it.
type visit struct {
	asked asked
	reply reply
	call  call
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	t := m.site.termsFor(r)
	v := &visit{asked: asked{Request: r, site: m.site, terms: t}}
	a := &v.reply
	a.m, a.next, a.w, a.asked, a.says = m, next, w, &v.asked, &v.call.says
	a.event.Request, a.event.began = r, time.Now()
	defer a.report()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		a.otherMethod()
		return
	}
	if t.bypass || bypasses(r) {
		a.pass(rfc9111.FwdBypass, "")
		return
	}
	v.asked.read()
	c := &v.call
	c.m, c.asked, c.says, c.out = m, a.asked, m.site.says(r.Header), a
	// A route of HEAD alone may have a handler that makes no page.
	alone := c.says.NoStore || hasPrecondition(c.asked.Header) || strings.HasPrefix(r.Pattern, "HEAD ")
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
