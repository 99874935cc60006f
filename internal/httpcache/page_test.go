package httpcache_test

import (
	"errors"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/httpcache"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

func TestPagesSurviveTheCodec(t *testing.T) {
	for name, p := range map[string]*httpcache.Page{
		"response": {
			Status: 200, Header: http.Header{"A": {"1", "2"}, "Empty": nil, "B": {""}}, Trailer: http.Header{"T": {"1"}},
			Body: []byte("body"), Gzip: []byte("gzip"), Vary: []string{"A"}, Variant: "v", HidesTags: true, Length: "4",
			Freshness: rfc9111.Freshness{Lifetime: time.Minute, InitialAge: time.Second, NeverStale: true, Origin: rfc9111.FromMaxAge},
		},
		"index": {Index: &httpcache.Index{Gen: "g", Names: []string{"A"}, Variants: []string{"v", "w"}}},
		"epoch": {Epoch: "e"},
	} {
		b, err := httpcache.Codec{}.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var got *httpcache.Page
		if err := (httpcache.Codec{}).Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, p)
		}
	}
}

// FuzzDecodePage: any bytes in Redis are a page or damaged.
func FuzzDecodePage(f *testing.F) {
	b, _ := httpcache.Codec{}.Marshal(&httpcache.Page{Status: 200, Header: http.Header{"A": {"1", "2"}}, Body: []byte("body")})
	f.Add(b)
	f.Add([]byte{})
	f.Add([]byte("e\x04abcd"))
	f.Add([]byte("i\x01g\x01\x01A\x00"))
	f.Add([]byte{'r', 0xc8, 1, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		var p *httpcache.Page
		if err := (httpcache.Codec{}).Unmarshal(b, &p); err != nil {
			if !errors.Is(err, cache.ErrDamaged) {
				t.Error(err)
			}
			return
		}
		if _, err := (httpcache.Codec{}).Marshal(p); err != nil {
			t.Errorf("a decoded page can't be encoded: %v", err)
		}
	})
}
