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
	{rule{"9111 4.1", "white space in a list of tokens doesn't matter, in any field"}, "Foo", "Foo: a,b", "Foo: a , b", true},
	{rule{"9111 4.1", "the tokens of a list do"}, "Foo", "Foo: a,b", "Foo: ab", false},
	{rule{"9111 4.1", "an empty element of an unknown field does"}, "Foo", "Foo: a,b", "Foo: a,,b", false},
	{rule{"9111 4.1", "the case of scripts and regions doesn't matter"}, "Accept-Language", "Accept-Language: zh-hant-tw", "Accept-Language: ZH-Hant-TW", true},
	{rule{"9111 4.1", "the text of a weight doesn't matter"}, "Accept-Language", "Accept-Language: en;q=1.0, de;Q=0.50", "Accept-Language: en, de;q=0.5", true},
	{rule{"9111 4.1", "the size of a weight does"}, "Accept-Language", "Accept-Language: en, de;q=0.5", "Accept-Language: en, de;q=0.4", false},
	{rule{"9111 4.1", "languages of different weight may come in any order"}, "Accept-Language", "Accept-Language: fr;q=0.5, *;q=0, de", "Accept-Language: de, fr;q=0.5, *;q=0", true},
	{rule{"9111 4.1", "a weight of zero is none of one"}, "Accept-Language", "Accept-Language: de;q=0", "Accept-Language: de", false},
	{rule{"9111 4.1", "a malformed weight matters"}, "Accept-Language", "Accept-Language: de;q=2", "Accept-Language: de", false},
	{rule{"9111 4.1", "the case of a malformed field matters"}, "Accept-Language", "Accept-Language: de;q=2", "Accept-Language: DE;q=2", false},
	{rule{"9111 4.1", "the order of languages of equal weight does: servers go by it"}, "Accept-Language", "Accept-Language: en, de", "Accept-Language: de, en", false},
	{rule{"9111 4.1", "white space matters where a comma isn't known to separate a list"}, "User-Agent", "User-Agent: a (b,c)", "User-Agent: a (b, c)", false},
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

func TestLanguagesHaveOneForm(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"de-DE,de;q=0.9,en-US;q=0.8":       "de-DE,de;q=0.9,en-US;q=0.8",
		" EN-us ; q=0.70 ,, *;q=0.1":       "en-US;q=0.7,*;q=0.1",
		"a;q=0.123, b;q=0.2, c, d;q=1.000": "c,d,b;q=0.2,a;q=0.123",
		"sr-latn-rs, x-whatever, de-x-ab":  "sr-Latn-RS,x-whatever,de-x-ab",
		"es-419, de-1996":                  "es-419,de-1996",
		"de;q=0, en;q=0.001":               "en;q=0.001,de;q=0",
		"en;q=0.0010":                      "malformed",
		"en;q=1.5":                         "malformed",
		"en;q=1.001":                       "malformed",
		"en;q=":                            "malformed",
		"en;level=1":                       "malformed",
		"en;q=0.5;q=0.4":                   "malformed",
		"en us":                            "malformed",
		"en-":                              "malformed",
		"1de":                              "malformed",
		"en;q=-1":                          "malformed",
		"abcdefghi":                        "malformed",
		`en;q="0.5"`:                       "malformed",
		"d\u00e9":                          "malformed",
	} {
		got, ok := rfc9111.Languages([]string{in})
		if !ok {
			got = "malformed"
		}
		if got != want {
			t.Errorf("%q becomes %q, not %q", in, got, want)
		}
		if again, _ := rfc9111.Languages([]string{got}); ok && again != got {
			t.Errorf("%q becomes %q", got, again)
		}
	}
	if got, _ := rfc9111.Languages([]string{"fr;q=0.5", "de"}); got != "de,fr;q=0.5" {
		t.Errorf("two lines become %q", got)
	}
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
