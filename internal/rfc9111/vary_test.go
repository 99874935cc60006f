package rfc9111_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

type varyRow struct {
	rule
	lines string
	want  []string
	ok    bool
}

var varyRows = []varyRow{
	{rule{"9111 4.1", "no Vary nominates nothing"}, "", nil, true},
	{rule{"9111 4.1", "names are canonical, sorted, and each once"}, "Vary: x-b, ACCEPT\nVary: accept ,X-A, AZaz09, !x", []string{"!x", "Accept", "Azaz09", "X-A", "X-B"}, true},
	{rule{"9111 4.1", "* matches nothing"}, "Vary: *", nil, false},
	{rule{"9111 4.1", "* among names matches nothing"}, "Vary: Foo, *", nil, false},
	{rule{"9111 4.1", "* before names matches nothing"}, "Vary: *, Foo", nil, false},
	{rule{"9111 4.1", "* on another line matches nothing"}, "Vary: \nVary: *", nil, false},
	{rule{"9111 4.1", "two * match nothing"}, "Vary: *, *", nil, false},
	{rule{"9111 4.1", "empty elements nominate nothing"}, "Vary: , ,", nil, true},
	{rule{"9111 4.1", "text that isn't a field name matches nothing"}, "Vary: Foo Bar", nil, false},
}

func TestVary(t *testing.T) {
	run(t, varyRows, func(t *testing.T, r varyRow) {
		got, ok := rfc9111.VaryNames(fields(r.lines))
		if !slices.Equal(got, r.want) || ok != r.ok {
			t.Errorf("got %q %v", got, ok)
		}
	})
}

// Pitfall 35: Vary is capped.
func TestVaryIsCapped(t *testing.T) {
	var names []string
	for i := range rfc9111.MaxVaryNames {
		names = append(names, fmt.Sprintf("X-%d", i))
	}
	h := fields("Vary: " + strings.Join(names, ",") + ", x-0")
	if got, ok := rfc9111.VaryNames(h); !ok || len(got) != rfc9111.MaxVaryNames {
		t.Errorf("got %v %v", got, ok)
	}
	h.Add("Vary", "X-Another")
	if _, ok := rfc9111.VaryNames(h); ok {
		t.Error("one more is accepted")
	}
}

type variantRow struct {
	rule
	vary, a, b string
	same       bool
}

var variantRows = []variantRow{
	{rule{"9111 4.1", "equal fields match"}, "Foo", "Foo: 1", "Foo: 1", true},
	{rule{"9111 4.1", "different fields don't"}, "Foo", "Foo: 1", "Foo: 2", false},
	{rule{"9111 4.1", "fields that aren't nominated don't matter"}, "Foo", "Foo: 1\nBar: 1", "Foo: 1\nBar: 2", true},
	{rule{"9111 4.1", "all that are nominated have to match"}, "Foo, Bar", "Foo: 1\nBar: 1", "Foo: 1\nBar: 2", false},
	{rule{"9111 4.1", "absent matches absent"}, "Foo", "", "", true},
	{rule{"9111 4.1", "absent doesn't match present"}, "Foo", "", "Foo: 1", false},
	{rule{"9111 4.1", "absent doesn't match empty"}, "Foo", "", "Foo:", false},
	{rule{"9111 4.1", "values don't run into each other"}, "Foo, Goo", "Foo: 1\nGoo: 23", "Foo: 12\nGoo: 3", false},
	{rule{"9111 4.1", "lines are combined"}, "Foo", "Foo: 1\nFoo: 2", "Foo: 1, 2", true},
	{rule{"9111 4.1", "the order of lines matters"}, "Foo", "Foo: 1\nFoo: 2", "Foo: 2, 1", false},
	{rule{"9111 4.1", "white space in lists doesn't matter"}, "Accept-Language", "Accept-Language: en;q=1,de ,  fr", "Accept-Language: en; q=1, de, fr", true},
	{rule{"9111 4.1", "white space around parameters doesn't matter"}, "Accept", "Accept: text/html ;q=1,*/*", "Accept: text/html;q=1, */*", true},
	{rule{"9111 4.1", "the case of languages doesn't matter"}, "Accept-Language", "Accept-Language: EN", "Accept-Language: en", true},
	{rule{"9111 4.1", "the order of languages does: servers go by it"}, "Accept-Language", "Accept-Language: en, de", "Accept-Language: de, en", false},
	{rule{"9111 4.1", "white space matters where a comma isn't known to separate a list"}, "User-Agent", "User-Agent: a,b", "User-Agent: a, b", false},
	{rule{"9111 4.1", "case matters where it isn't known not to"}, "Foo", "Foo: a", "Foo: A", false},
	{rule{"9111 4.1", "white space in quotes matters"}, "Accept", "Accept: text/html;a=\"b;c\"", "Accept: text/html;a=\"b; c\"", false},
}

func TestVariantKey(t *testing.T) {
	run(t, variantRows, func(t *testing.T, r variantRow) {
		names, ok := rfc9111.VaryNames(fields("Vary: " + r.vary))
		if !ok {
			t.Fatal("no names")
		}
		a, b := rfc9111.VariantKey(names, request("GET\n"+r.a)), rfc9111.VariantKey(names, request("GET\n"+r.b))
		if (a == b) != r.same {
			t.Errorf("%s and %s", a, b)
		}
	})
}

func TestVariantKeyOfHostIsThatOfTheRequest(t *testing.T) {
	a, b := request("GET http://a/"), request("GET http://b/")
	names := []string{"Host"}
	if rfc9111.VariantKey(names, a) == rfc9111.VariantKey(names, b) {
		t.Error("two hosts have one key")
	}
}

func TestVariantKeyShowsNoCredentials(t *testing.T) {
	key := rfc9111.VariantKey([]string{"Authorization"}, request("GET\nAuthorization: secret"))
	if len(key) != 64 || strings.Trim(key, "0123456789abcdef") != "" {
		t.Errorf("key %q", key)
	}
	if key := rfc9111.VariantKey(nil, request("GET")); key != "" {
		t.Errorf("no names: %q", key)
	}
}
