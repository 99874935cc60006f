package rfc9111_test

import (
	"net/http"
	"reflect"
	"slices"
	"testing"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

type conditionRow struct {
	rule
	stored []string
	want   string
}

var conditionRows = []conditionRow{
	{rule{"9111 4.3.1", "the stored ETag and Last-Modified are sent"}, []string{etagged}, "If-None-Match: \"a\"\nIf-Modified-Since: $-1h"},
	{rule{"9111 4.3.1", "a weak ETag is sent"}, []string{"Etag: W/\"a\""}, "If-None-Match: W/\"a\""},
	{rule{"9111 4.3.1", "Last-Modified alone is sent"}, []string{"Last-Modified: $-1h"}, "If-Modified-Since: $-1h"},
	{rule{"9111 4.3.1", "the ETags of all stored responses are sent, each once"}, []string{etagged, "Etag: \"b\"", "Etag: \"a\""}, "If-None-Match: \"a\", \"b\""},
	{rule{"9111 4.3.1", "text that isn't an ETag isn't sent"}, []string{"Etag: a"}, ""},
	{rule{"9111 4.3.1", "text that isn't a date isn't sent"}, []string{"Last-Modified: yesterday"}, ""},
	{rule{"9111 4.3.1", "without validators nothing is sent, and the client's own conditions neither"}, []string{"X: y"}, ""},
}

func TestSetConditions(t *testing.T) {
	run(t, conditionRows, func(t *testing.T, r conditionRow) {
		var stored []http.Header
		for _, s := range r.stored {
			stored = append(stored, fields(s))
		}
		h := fields("If-Match: \"x\"\nIf-None-Match: \"x\"\nIf-Modified-Since: $-9h\nRange: bytes=0-1\nIf-Range: \"x\"")
		set := rfc9111.SetConditions(h, stored...)
		if want := fields(r.want); !reflect.DeepEqual(h, want) || set != (len(want) > 0) {
			t.Errorf("got %v %v", h, set)
		}
		if len(stored) == 1 && rfc9111.HasValidator(stored[0]) != set {
			t.Error("HasValidator says otherwise")
		}
	})
}

type selectedRow struct {
	rule
	update string
	stored []string
	want   []int
}

var selectedRows = []selectedRow{
	{rule{"9111 4.3.4", "a strong ETag selects all that have it"}, "Etag: \"a\"", []string{"Etag: \"b\"", "Etag: \"a\"", "Etag: \"a\""}, []int{1, 2}},
	{rule{"9111 4.3.4", "a strong ETag doesn't select a weak one"}, "Etag: \"a\"", []string{"Etag: W/\"a\""}, nil},
	{rule{"9111 4.3.4", "a strong ETag that nothing has selects nothing"}, "Etag: \"c\"", []string{"Etag: \"a\""}, nil},
	{rule{"9111 4.3.4", "a weak ETag selects the newest that has it"}, "Etag: W/\"a\"", []string{"Etag: \"b\"", "Etag: W/\"a\"", "Etag: W/\"a\""}, []int{1}},
	{rule{"9111 4.3.4", "Last-Modified selects the newest that has it"}, "Last-Modified: $-1h", []string{"Last-Modified: $-2h", etagged, etagged}, []int{1}},
	{rule{"9111 4.3.4", "another Last-Modified selects nothing"}, "Last-Modified: $-3h", []string{"Last-Modified: $-2h"}, nil},
	{rule{"9111 4.3.4", "no validator selects the only one there is"}, "X: y", []string{etagged}, []int{0}},
	{rule{"9111 4.3.4", "no validator selects none of several"}, "X: y", []string{etagged, "Etag: \"b\""}, nil},
}

func TestSelected(t *testing.T) {
	run(t, selectedRows, func(t *testing.T, r selectedRow) {
		var stored []http.Header
		for _, s := range r.stored {
			stored = append(stored, fields(s))
		}
		if got := rfc9111.Selected(fields(r.update), stored...); !slices.Equal(got, r.want) {
			t.Errorf("got %v, want %v", got, r.want)
		}
	})
}

type freshenRow struct {
	rule
	stored, update, want string
}

var freshenRows = []freshenRow{
	{rule{"9111 3.2", "fields of the update replace those that are stored"}, "X-A: 1\nX-A: 2\nDate: $-1h", "X-A: 3\nDate: $0s", "X-A: 3\nDate: $0s"},
	{rule{"9111 3.2", "fields that it doesn't have stay"}, "X-A: 1", "X-B: 2", "X-A: 1\nX-B: 2"},
	{rule{"9111 3.2", "Content-Length, Content-Encoding and Content-Range describe the stored body: they stay"}, "Content-Length: 5\nContent-Encoding: gzip", "Content-Length: 0\nContent-Encoding: br\nContent-Range: bytes 0-1/2", "Content-Length: 5\nContent-Encoding: gzip"},
	{rule{"9111 3.2", "Content-Type and other metadata are updated"}, "Content-Type: text/plain\nContent-Location: /a", "Content-Type: text/plain;charset=utf-8\nContent-Location: /b", "Content-Type: text/plain;charset=utf-8\nContent-Location: /b"},
	{rule{"9111 3.2", "fields that aren't stored don't update"}, "X-A: 1\nCache-Control: a", "Connection: X-A\nX-A: 2\nKeep-Alive: 5\nCache-Control: private=\"x-b\", no-cache=\"x-c\"\nX-B: 1\nX-C: 1", "X-A: 1\nCache-Control: private=\"x-b\", no-cache=\"x-c\""},
	{rule{"9111 4.3.4", "the age of a 304 counts, and not the one before"}, "Age: 100", "Age: 5", "Age: 5"},
	{rule{"9111 4.3.4", "a 304 without Age or Date leaves no old one behind"}, "Age: 100\nDate: $-1h", "X: y", "X: y"},
}

func TestFreshen(t *testing.T) {
	run(t, freshenRows, func(t *testing.T, r freshenRow) {
		stored, update := fields(r.stored), fields(r.update)
		got := rfc9111.Freshen(stored, update, shared)
		if !reflect.DeepEqual(got, fields(r.want)) {
			t.Errorf("got %v", got)
		}
		if !reflect.DeepEqual(stored, fields(r.stored)) || !reflect.DeepEqual(update, fields(r.update)) {
			t.Error("a header that was given has changed")
		}
	})
}

// The freshened response is subject to Store: a 304 can forbid its use.
func TestFreshenedResponseIsJudgedAgain(t *testing.T) {
	for update, want := range map[string]rfc9111.Audience{
		"Cache-Control: no-store": nobody,
		"Cache-Control: private":  nobody,
		"Set-Cookie: a=b":         nobody,
		"X: y":                    anyone,
	} {
		resp := response("")
		resp.Header = rfc9111.Freshen(fields("Cache-Control: max-age=9\nEtag: \"a\""), fields(update), shared)
		if got := rfc9111.Store(request(""), resp, shared).For; got != want {
			t.Errorf("%s: %d", update, got)
		}
	}
}

type headRow struct {
	rule
	stored, head string
	want         bool
}

var headRows = []headRow{
	{rule{"9111 4.3.5", "a HEAD with the same validators and length freshens"}, etagged + "\nContent-Length: 5", etagged + "\nContent-Length: 5", true},
	{rule{"9111 4.3.5", "a HEAD with another ETag makes it stale"}, etagged, "Etag: \"b\"", false},
	{rule{"9111 4.3.5", "a HEAD with an ETag that differs in weakness only doesn't"}, etagged, "Etag: W/\"a\"", true},
	{rule{"9111 4.3.5", "a HEAD with another Last-Modified makes it stale"}, etagged, "Last-Modified: $-2h", false},
	{rule{"9111 4.3.5", "a HEAD with another length makes it stale"}, "Content-Length: 5", "Content-Length: 6", false},
	{rule{"9111 4.3.5", "a field that a HEAD leaves out doesn't differ"}, etagged + "\nContent-Length: 5", "X: y", true},
}

func TestHeadAgrees(t *testing.T) {
	run(t, headRows, func(t *testing.T, r headRow) {
		if got := rfc9111.HeadAgrees(fields(r.stored), fields(r.head)); got != r.want {
			t.Errorf("got %v", got)
		}
	})
}
