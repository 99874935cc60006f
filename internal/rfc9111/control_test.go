package rfc9111_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

type directiveRow struct {
	rule
	line string // Cache-Control, or the field before a colon
	resp rfc9111.ResponseControl
	req  rfc9111.RequestControl
}

func seconds(n int) rfc9111.Delta {
	return rfc9111.Delta{Set: true, Value: time.Duration(n) * time.Second}
}

var (
	invalid = rfc9111.Delta{Set: true, Invalid: true}
	forever = rfc9111.Delta{Set: true, Value: rfc9111.MaxDelta}
)

type (
	ofResponse = rfc9111.ResponseControl
	ofRequest  = rfc9111.RequestControl
)

var directiveRows = []directiveRow{
	{rule{"9111 5.2", "names of directives are case-insensitive"}, "MaX-aGe=5", ofResponse{MaxAge: seconds(5)}, ofRequest{MaxAge: seconds(5)}},
	{rule{"9111 5.2", "an argument may be quoted"}, `max-age="5"`, ofResponse{MaxAge: seconds(5)}, ofRequest{MaxAge: seconds(5)}},
	{rule{"9111 5.2", "a quoted argument may have escapes"}, `private="\x\-a"`, ofResponse{PrivateFields: []string{"X-A"}}, ofRequest{}},
	{rule{"9111 5.2", "single quotes aren't quotes"}, "max-age='5'", ofResponse{MaxAge: invalid}, ofRequest{MaxAge: invalid}},
	{rule{"9111 5.2", "directives that aren't known are ignored"}, "foo, bar=1, max-age=5", ofResponse{MaxAge: seconds(5)}, ofRequest{MaxAge: seconds(5)}},
	{rule{"9111 5.2", "a quoted argument hides its content"}, `ext="max-age=100, no-store", max-age=5`, ofResponse{MaxAge: seconds(5)}, ofRequest{MaxAge: seconds(5)}},
	{rule{"9111 5.2", "a quote that is escaped doesn't end it"}, `ext="\", no-store", max-age=5`, ofResponse{MaxAge: seconds(5)}, ofRequest{MaxAge: seconds(5)}},
	{rule{"9111 5.2", "one with a quote that never closes hides nothing"}, `ext="x, no-store`, ofResponse{NoStore: true}, ofRequest{NoStore: true}},
	{rule{"9111 5.2", "a semicolon in place of a comma hides no restriction"}, "public; max-age=9; private", ofResponse{MaxAge: invalid, Private: true}, ofRequest{}},
	{rule{"9111 5.2", "a space in place of a comma doesn't, either"}, "no-store no-cache must-revalidate", ofResponse{NoStore: true, NoCache: true, MustRevalidate: true}, ofRequest{}},
	{rule{"9111 5.2", "empty elements are ignored"}, ", ,max-age=5,,", ofResponse{MaxAge: seconds(5)}, ofRequest{MaxAge: seconds(5)}},
	{rule{"9111 5.2", "white space around = makes a number invalid"}, "max-age =5", ofResponse{MaxAge: invalid}, ofRequest{MaxAge: invalid}},
	{rule{"9111 5.2", "white space after = does, too"}, "max-age= 5", ofResponse{MaxAge: invalid}, ofRequest{MaxAge: invalid}},
	{rule{"9111 5.2", "white space doesn't disarm no-store"}, "no-store = 1", ofResponse{NoStore: true}, ofRequest{NoStore: true}},
	{rule{"9111 4.2.1", "of two max-age the shorter counts"}, "max-age=9, max-age=5", ofResponse{MaxAge: seconds(5)}, ofRequest{MaxAge: seconds(5)}},
	{rule{"9111 4.2.1", "of two max-age the shorter counts, whichever comes first"}, "max-age=5, max-age=9", ofResponse{MaxAge: seconds(5)}, ofRequest{MaxAge: seconds(5)}},
	{rule{"9111 4.2.1", "a max-age that isn't a number is stale"}, "max-age=5a", ofResponse{MaxAge: invalid}, ofRequest{MaxAge: invalid}},
	{rule{"9111 4.2.1", "a fraction isn't a number of seconds"}, "max-age=5.0", ofResponse{MaxAge: invalid}, ofRequest{MaxAge: invalid}},
	{rule{"9111 4.2.1", "a negative max-age is stale"}, "max-age=-5", ofResponse{MaxAge: invalid}, ofRequest{MaxAge: invalid}},
	{rule{"9111 4.2.1", "a max-age without a number is stale"}, "max-age", ofResponse{MaxAge: invalid}, ofRequest{MaxAge: invalid}},
	{rule{"9111 4.2.1", "an invalid max-age outweighs a valid one"}, "max-age=x, max-age=5", ofResponse{MaxAge: invalid}, ofRequest{MaxAge: invalid}},
	{rule{"9111 4.2.1", "zeros may lead"}, "max-age=005", ofResponse{MaxAge: seconds(5)}, ofRequest{MaxAge: seconds(5)}},
	{rule{"9111 4.2.1", "numbers that overflow are cut to 2^31"}, "max-age=99999999999999999999999", ofResponse{MaxAge: forever}, ofRequest{MaxAge: forever}},
	{rule{"9111 5.2.1.1", "max-age in a request"}, "max-age=7", ofResponse{MaxAge: seconds(7)}, ofRequest{MaxAge: seconds(7)}},
	{rule{"9111 5.2.1.2", "max-stale with a number"}, "max-stale=7", ofResponse{}, ofRequest{MaxStale: seconds(7)}},
	{rule{"9111 5.2.1.2", "max-stale without one: any staleness"}, "max-stale", ofResponse{}, ofRequest{MaxStale: forever}},
	{rule{"9111 5.2.1.2", "max-stale that isn't a number: none"}, "max-stale=x", ofResponse{}, ofRequest{}},
	{rule{"9111 5.2.1.3", "of two min-fresh the longer counts"}, "min-fresh=7, min-fresh=9", ofResponse{}, ofRequest{MinFresh: seconds(9)}},
	{rule{"9111 5.2.1.6", "no-transform is told to the caller"}, "no-transform", ofResponse{NoTransform: true}, ofRequest{NoTransform: true}},
	{rule{"9111 5.2.1.7", "only-if-cached"}, "only-if-cached", ofResponse{}, ofRequest{OnlyIfCached: true}},
	{
		rule{"9111 5.2.2", "all directives of responses are read"},
		"no-store, no-transform, public, private, no-cache, must-revalidate, proxy-revalidate, must-understand, immutable, max-age=1, s-maxage=2, stale-while-revalidate=3, stale-if-error=4",
		ofResponse{
			NoStore: true, NoTransform: true, Public: true, Private: true, NoCache: true, MustRevalidate: true, ProxyRevalidate: true, MustUnderstand: true, Immutable: true,
			MaxAge: seconds(1), SMaxAge: seconds(2), StaleWhileRevalidate: seconds(3), StaleIfError: seconds(4),
		},
		ofRequest{NoStore: true, NoTransform: true, NoCache: true, MaxAge: seconds(1), StaleIfError: seconds(4)},
	},
	{rule{"9111 5.2.2.4", "no-cache with and without fields: without counts, too"}, `no-cache="a", no-cache`, ofResponse{NoCache: true, NoCacheFields: []string{"A"}}, ofRequest{NoCache: true}},
	{rule{"9111 5.2.2.4", "a list of fields may be repeated"}, `no-cache="a", no-cache="b, A"`, ofResponse{NoCacheFields: []string{"A", "B"}}, ofRequest{NoCache: true}},
	{rule{"9111 5.4", "Pragma: no-cache in a request is no-cache"}, "Pragma: no-cache", ofResponse{}, ofRequest{NoCache: true}},
	{rule{"9111 5.4", "Pragma: no-cache is ignored beside Cache-Control"}, "Pragma: no-cache\nCache-Control: max-age=5", ofResponse{MaxAge: seconds(5)}, ofRequest{MaxAge: seconds(5)}},
	{rule{"9111 5.4", "Pragma with something else means nothing"}, "Pragma: x", ofResponse{}, ofRequest{}},
	{
		rule{"9213 2.1", "values are structured fields"},
		`Cdn-Cache-Control: max-age=5, no-cache="a", must-revalidate, stale-while-revalidate=3, stale-if-error=4;a=b, s-maxage=6`,
		ofResponse{Field: "Cdn-Cache-Control", MaxAge: seconds(5), NoCacheFields: []string{"A"}, MustRevalidate: true, StaleWhileRevalidate: seconds(3), StaleIfError: seconds(4), SMaxAge: seconds(6)},
		ofRequest{},
	},
	{rule{"9213 2.1", "keys in capital letters make it invalid"}, "Cdn-Cache-Control: MAX-AGE=5", ofResponse{}, ofRequest{}},
	{rule{"9213 2.1", "a false boolean doesn't count"}, "Cdn-Cache-Control: no-store=?0, max-age=5", ofResponse{Field: "Cdn-Cache-Control", MaxAge: seconds(5)}, ofRequest{}},
	{rule{"9213 2.1", "a number that isn't an integer is stale"}, "Cdn-Cache-Control: max-age=5.5", ofResponse{Field: "Cdn-Cache-Control", MaxAge: invalid}, ofRequest{}},
	{rule{"9213 2.1", "zero is a number"}, "Cdn-Cache-Control: max-age=0", ofResponse{Field: "Cdn-Cache-Control", MaxAge: seconds(0)}, ofRequest{}},
	{rule{"9213 2.1", "a negative number is stale"}, "Cdn-Cache-Control: max-age=-5", ofResponse{Field: "Cdn-Cache-Control", MaxAge: invalid}, ofRequest{}},
	{rule{"9213 2.1", "a flag of the wrong type counts"}, "Cdn-Cache-Control: private=1, no-store=(a b)", ofResponse{Field: "Cdn-Cache-Control", Private: true, NoStore: true}, ofRequest{}},
	{rule{"9213 2.1", "of a key that is there twice the last counts, as for all dictionaries"}, "Cdn-Cache-Control: max-age=5, max-age=9", ofResponse{Field: "Cdn-Cache-Control", MaxAge: seconds(9)}, ofRequest{}},
	{rule{"9213 2.1", "numbers are cut to 2^31"}, "Cdn-Cache-Control: max-age=99999999999", ofResponse{Field: "Cdn-Cache-Control", MaxAge: forever}, ofRequest{}},
}

func TestDirectives(t *testing.T) {
	run(t, directiveRows, func(t *testing.T, r directiveRow) {
		h := fields("Cache-Control: " + r.line)
		if given := fields(r.line); len(given["Pragma"])+len(given["Cdn-Cache-Control"]) > 0 {
			h = given
		}
		if len(h["Cache-Control"]) > 0 && r.resp.Field == "" {
			r.resp.Field = "Cache-Control"
		}
		if got := rfc9111.ParseResponse(h, shared); !reflect.DeepEqual(got, r.resp) {
			t.Errorf("in a response: got %+v, want %+v", got, r.resp)
		}
		if got := rfc9111.ParseRequest(h); got != r.req {
			t.Errorf("in a request: got %+v, want %+v", got, r.req)
		}
	})
}

func TestTheMostSpecificTargetRules(t *testing.T) {
	o := rfc9111.Options{Shared: true, Targets: []string{"Stampede-Cache-Control", "CDN-Cache-Control"}}
	h := fields("Cdn-Cache-Control: max-age=1\nStampede-Cache-Control: max-age=2\nCache-Control: max-age=3")
	if got := rfc9111.ParseResponse(h, o).MaxAge; got != seconds(2) {
		t.Errorf("got %v", got)
	}
	h.Set("Stampede-Cache-Control", "&")
	if got := rfc9111.ParseResponse(h, o).MaxAge; got != seconds(1) {
		t.Errorf("the first is invalid: got %v", got)
	}
	o.Targets = []string{}
	if got := rfc9111.ParseResponse(h, o).MaxAge; got != seconds(3) {
		t.Errorf("no targets: got %v", got)
	}
}
