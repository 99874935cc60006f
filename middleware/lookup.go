package middleware

import (
	"context"
	"net/http"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// lookUp answers from a stored page and never runs the handler. served is false if no stored
// page will do, and stored tells whether there is one.
func (c *call) lookUp() (served, stored bool) {
	ctx := c.asked.Context()
	p, res, ok := c.peek(ctx)
	if !ok || !c.asked.mayUse(p.Freshness) {
		return false, ok
	}
	age := ageOf(p, res)
	switch verdict, _ := rfc9111.MayServe(p.Freshness, age, c.says); verdict {
	case rfc9111.ServeFresh, rfc9111.ServeStale, rfc9111.ServeAndRefresh:
		if verdict == rfc9111.ServeAndRefresh && c.asked.Method == http.MethodGet && !c.says.NoStore && !c.says.OnlyIfCached {
			return false, true // answer also refreshes it
		}
		if c.says.OnlyIfCached && rfc9111.AnswerFor(c.asked.Request, p.Stored()) == rfc9111.AnswerElsewhere {
			return false, true // the handler must not be called
		}
		c.out.serve(p, res, age, "")
		return true, true
	}
	return false, true
}

// peek returns the stored page for this request, fresh or stale.
func (c *call) peek(ctx context.Context) (p *httpcache.Page, res guard.Result[*httpcache.Page], ok bool) {
	epoch := ""
	if c.asked.terms.epochs {
		res, err := c.m.pages.guard.Peek(ctx, keyEpoch+c.asked.page())
		if err != nil || res.Value.Epoch == "" {
			return nil, res, false
		}
		epoch = res.Value.Epoch
	}
	key := c.asked.key(epoch)
	res, err := c.m.pages.guard.Peek(ctx, key)
	if err == nil && res.Value.Index != nil {
		ix := res.Value.Index
		key = variantKey(key, ix, rfc9111.VariantKey(ix.Names, c.asked.varying(ix.Names)))
		res, err = c.m.pages.guard.Peek(ctx, key)
	}
	c.out.event.key = key
	if err != nil || res.Value.Status == 0 {
		return nil, res, false
	}
	p = res.Value
	if len(p.Vary) > 0 && p.Variant != rfc9111.VariantKey(p.Vary, c.asked.varying(p.Vary)) {
		return nil, res, false
	}
	return p, res, true
}
