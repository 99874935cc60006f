package transport_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stampedeguard/stampede/middleware/transport"
)

func TestCredentialsAreKnownByName(t *testing.T) {
	k := transport.NewKeyer(transport.Options{Credentials: []string{"x-caller"}, Harmless: []string{"X-Session-Trace"}})
	for name, want := range map[string]bool{
		"Authorization": true, "Proxy-Authorization": true, "Cookie": true, "X-Api-Key": true, "Apikey": true, "X-Auth-Token": true,
		"Private-Token": true, "X-Shopify-Access-Token": true, "Ocp-Apim-Subscription-Key": true, "X-Goog-Api-Key": true,
		"Stripe-Account": true, "X-User-Id": true, "X-Tenant": true, "X-Amz-Security-Token": true, "X-Caller": true,
		"X-Client-Id": true, "X-Project-Id": true, "X-On-Behalf-Of": true, "Dpop": true,
		"Accept": false, "Accept-Language": false, "User-Agent": false, "Idempotency-Key": false, "Traceparent": false,
		"X-Request-Id": false, "X-Session-Trace": false, "If-None-Match": false, "Range": false,
	} {
		if got := k.IsPersonal(name); got != want {
			t.Errorf("%s is a credential: %v, want %v", name, got, want)
		}
	}
}

func FuzzKeys(f *testing.F) {
	f.Add("https://api.example.com/v1/x?api_key=0123456789", "Authorization", "Bearer abcdefghij", "Bearer abcdefghik", "")
	f.Add("http://me:password0@example.com:80/", "Cookie", "", "a=b", "custom key")
	f.Add("http://[::1]:8080/%2f/;a?%zz&=&token", "X-Api-Key", "a\x00b", "a", "")
	f.Fuzz(func(t *testing.T, rawURL, header, one, other, custom string) {
		u, err := url.Parse(rawURL)
		if err != nil || u.Host == "" {
			return // nothing that would be asked
		}
		k := transport.NewKeyer(transport.Options{Name: "transport"})
		with := func(value string) (*http.Request, string) {
			req := &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{header: {value}}}
			key, personal := k.Key(http.MethodGet, req, custom)
			if k.IsPersonal(header) && !personal {
				t.Errorf("%q isn't personal", header)
			}
			return req, key
		}
		req, key := with(one)
		_, otherKey := with(other)
		if same := key == otherKey; k.IsPersonal(header) && same != (one == other) {
			t.Errorf("%q: %q and %q share a key: %v", header, one, other, same)
		}
		digest := key[strings.LastIndexByte(key, ' ')+1:]
		if len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" || key != "GET "+transport.HostOf(u)+" "+digest {
			t.Errorf("the key %q has more than method and host in the clear", key)
		}
		if v := k.Variant(key, "1", []string{http.CanonicalHeaderKey(header)}, req); v == key || len(v) != len(key) || strings.HasPrefix(v, key) {
			t.Errorf("the variant of %q is %q", key, v)
		}
	})
}
