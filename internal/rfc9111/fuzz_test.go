package rfc9111_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// says reports whether a field has a directive of that name, by a reading of its
// own that is cruder than the package's: text in quotes is left out, if every
// quote is closed.
func says(h http.Header, field, name string) bool {
	for _, line := range h[field] {
		if strings.Count(line, `"`) == 0 && !strings.Contains(line, `\`) {
			for element := range strings.SplitSeq(line, ",") {
				before, _, _ := strings.Cut(element, "=")
				if strings.EqualFold(strings.Trim(before, " \t"), name) {
					return true
				}
			}
		}
	}
	return false
}

// No pair of request and response makes the rules panic. Responses with no-store, private
// and Authorization in a shared cache, and cookies without the option, are not stored.
func FuzzStore(f *testing.F) {
	for _, r := range storeRows {
		f.Add(r.req, r.resp, r.opts.Shared, r.opts.AllowSetCookie, r.opts.Heuristic)
	}
	for _, r := range freshnessRows {
		f.Add("GET", r.resp, r.opts.Shared, true, r.opts.Heuristic)
	}
	for _, r := range directiveRows {
		f.Add("GET\nAuthorization: x\nCache-Control: "+r.line, "Cache-Control: max-age=5, "+r.line, true, true, true)
	}
	f.Fuzz(func(t *testing.T, reqText, respText string, isShared, setCookie, heuristic bool) {
		method, lines, _ := strings.Cut(reqText, "\n")
		req := request("GET")
		req.Header, req.Method = lenientFields(lines), method
		resp := &rfc9111.Response{Status: 200, RequestTime: noon, ResponseTime: noon, Header: lenientFields(respText)}
		if len(respText) > 3 && respText[3] == '\n' {
			resp.Status = response(respText[:3]).Status
		}
		o := rfc9111.Options{Shared: isShared, AllowSetCookie: setCookie, Heuristic: heuristic, Lifetime: time.Minute}
		d := rfc9111.Store(req, resp, o)
		stored := rfc9111.StoredHeader(resp, d.Control, o)
		checkFreshness(t, d.Freshness)
		if d.For == rfc9111.Nobody {
			if d.Reason == "" {
				t.Error("not stored, for no reason")
			}
			return
		}
		checkStored(t, req, resp, d, stored, o)
	})
}

func checkStored(t *testing.T, req *http.Request, resp *rfc9111.Response, d rfc9111.Decision, stored http.Header, o rfc9111.Options) {
	c := d.Control
	switch {
	case req.Method != "GET" && req.Method != "":
		t.Errorf("method %q is stored", req.Method)
	case c.NoStore && !c.MustUnderstand:
		t.Error("no-store is stored")
	case o.Shared && (c.Private || d.For != rfc9111.Anyone):
		t.Error("a private response is stored in a shared cache")
	case o.Shared && len(req.Header["Authorization"]) > 0 && !c.Public && !c.MustRevalidate && !c.SMaxAge.Set:
		t.Error("a response to Authorization is shared")
	case len(stored["Set-Cookie"])+len(stored["Set-Cookie2"]) > 0 && !o.AllowSetCookie:
		t.Error("a cookie is stored")
	case len(stored["Connection"])+len(stored["Transfer-Encoding"])+len(stored["Age"]) > 0:
		t.Error("a field of the connection is stored")
	case resp.Status < 200 || resp.Status > 599 || resp.Status == 206 || resp.Status == 304:
		t.Errorf("status %d is stored", resp.Status)
	}
	if c.Field != "Cache-Control" {
		return // another field rules
	}
	if says(resp.Header, c.Field, "no-store") && !c.MustUnderstand {
		t.Error("no-store was overlooked")
	}
	if o.Shared && says(resp.Header, c.Field, "private") {
		t.Error("private was overlooked")
	}
	if says(req.Header, "Cache-Control", "no-store") {
		t.Error("the request's no-store was overlooked")
	}
}

// checkFreshness checks that no time overflows, and that NeverStale is obeyed.
func checkFreshness(t *testing.T, f rfc9111.Freshness) {
	for name, d := range map[string]time.Duration{
		"lifetime": f.Lifetime, "age": f.InitialAge, "stale-while-revalidate": f.StaleWhileRevalidate, "stale-if-error": f.StaleIfError,
	} {
		if d < 0 || d > rfc9111.MaxDelta {
			t.Errorf("%s of %v", name, d)
		}
	}
	for _, req := range []rfc9111.RequestControl{{}, {MaxStale: forever}, {StaleIfError: forever}, {MaxAge: seconds(5)}} {
		age := max(f.InitialAge, f.Lifetime)
		v, _ := rfc9111.MayServe(f, age, req)
		if f.NeverStale && (v != rfc9111.Validate || rfc9111.MayServeOnError(f, age, req)) {
			t.Errorf("served stale: %d", v)
		}
		if v == rfc9111.ServeFresh {
			t.Error("fresh after its lifetime")
		}
		if v, _ := rfc9111.MayServe(f, f.InitialAge, req); f.NoCache && v != rfc9111.Validate {
			t.Errorf("no-cache served without validation: %d", v)
		}
	}
}

// lenientFields is fields for any text.
func lenientFields(s string) http.Header {
	h := http.Header{}
	for line := range strings.SplitSeq(s, "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			h.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		}
	}
	return h
}

// No header makes a parser panic, and each output can be parsed.
func FuzzHeaders(f *testing.F) {
	for _, r := range answerRows {
		_, lines, _ := strings.Cut(r.req, "\n")
		f.Add(lines, r.resp)
	}
	for _, r := range variantRows {
		f.Add(r.a, "Vary: "+r.vary)
	}
	for _, r := range freshenRows {
		f.Add(r.update, r.stored)
	}
	f.Add("Cache-Control: only-if-cached", "Cache-Status: a;hit\nLocation: //x\nDate: Sunday, 29-Feb-00 08:49:37 GMT")
	f.Fuzz(func(t *testing.T, reqText, respText string) {
		req := request("GET")
		req.Header = lenientFields(reqText)
		resp := &rfc9111.Response{Status: 200, ResponseTime: noon, Header: lenientFields(respText)}
		if names, ok := rfc9111.VaryNames(resp.Header); ok && len(names) > 0 {
			if a, b := rfc9111.VariantKey(names, req), rfc9111.VariantKey(names, req); a != b || a == "" {
				t.Errorf("keys %q and %q", a, b)
			}
		}
		if rfc9111.AnswerFor(req, resp) == rfc9111.AnswerRanges {
			if len(rfc9111.RangeRequest(req).Header) != 1 {
				t.Error("a condition is left beside Range")
			}
		}
		rfc9111.NotModifiedHeader(resp.Header)
		rfc9111.HeadAgrees(resp.Header, req.Header)
		merged := rfc9111.Freshen(resp.Header, req.Header, shared)
		rfc9111.Selected(merged, resp.Header, req.Header)
		h := http.Header{}
		if rfc9111.SetConditions(h, resp.Header) != rfc9111.HasValidator(resp.Header) {
			t.Error("SetConditions and HasValidator differ")
		}
		post := request("POST http://a/x")
		for _, u := range rfc9111.Invalidated(post, false, 200, resp.Header) {
			if !strings.EqualFold(u.Hostname(), "a") {
				t.Errorf("another origin's: %v", u)
			}
		}
		rfc9111.Status{Cache: reqText, Key: respText, Detail: reqText, Hit: true}.AppendTo(resp.Header)
		if _, err := httpsfv.UnmarshalList(resp.Header["Cache-Status"]); err != nil {
			t.Errorf("%q: %v", resp.Header["Cache-Status"], err)
		}
	})
}
