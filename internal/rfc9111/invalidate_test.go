package rfc9111_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

type invalidatedRow struct {
	rule
	req    string
	status int
	resp   string
	want   []string
}

var invalidatedRows = []invalidatedRow{
	{rule{"9111 4.4", "POST invalidates its target"}, "POST http://a/x?y", 200, "", []string{"http://a/x?y"}},
	{rule{"9111 4.4", "PUT invalidates its target"}, "PUT http://a/x", 204, "", []string{"http://a/x"}},
	{rule{"9111 4.4", "DELETE invalidates its target"}, "DELETE http://a/x", 204, "", []string{"http://a/x"}},
	{rule{"9111 4.4", "a method that isn't known invalidates its target"}, "BREW http://a/x", 200, "", []string{"http://a/x"}},
	{rule{"9111 4.4", "GET, HEAD, OPTIONS and TRACE don't"}, "OPTIONS http://a/x", 200, "Location: /y", nil},
	{rule{"9111 4.4", "a redirection is no error"}, "POST http://a/x", 303, "", []string{"http://a/x"}},
	{rule{"9111 4.4", "an error of the client's invalidates nothing"}, "POST http://a/x", 404, "Location: /y", nil},
	{rule{"9111 4.4", "an error of the server's invalidates nothing"}, "POST http://a/x", 500, "Location: /y", nil},
	{rule{"9111 4.4", "Location and Content-Location of the same origin are invalidated"}, "POST http://a/x", 201, "Location: /y#f\nContent-Location: http://A:80/z", []string{"http://a/x", "http://a/y", "http://A:80/z"}},
	{rule{"9111 4.4", "those of another host aren't"}, "POST http://a/x", 201, "Location: http://b/y", []string{"http://a/x"}},
	{rule{"9111 4.4", "those of another scheme aren't"}, "POST http://a/x", 201, "Location: https://a/y", []string{"http://a/x"}},
	{rule{"9111 4.4", "those of another port aren't"}, "POST http://a/x", 201, "Location: http://a:8080/y", []string{"http://a/x"}},
	{rule{"9111 4.4", "a relative URL is so to the target"}, "POST http://a/x/y", 201, "Location: z", []string{"http://a/x/y", "http://a/x/z"}},
	{rule{"9111 4.4", "each is there once"}, "POST http://a/x", 201, "Location: /x\nContent-Location: /x", []string{"http://a/x"}},
	{rule{"9111 4.4", "text that isn't a URL is ignored"}, "POST http://a/x", 201, "Location: http://a:b:c/%zz", []string{"http://a/x"}},
}

func TestInvalidated(t *testing.T) {
	run(t, invalidatedRows, func(t *testing.T, r invalidatedRow) {
		var got []string
		for _, u := range rfc9111.Invalidated(request(r.req), false, r.status, fields(r.resp)) {
			got = append(got, u.String())
		}
		if !slices.Equal(got, r.want) {
			t.Errorf("got %q", got)
		}
	})
}

func TestTargetOfAServersRequest(t *testing.T) {
	req := request("POST /x")
	req.Host = "a"
	for secure, want := range map[bool]string{false: "http://a/x", true: "https://a/x"} {
		urls := rfc9111.Invalidated(req, secure, 200, http.Header{"Location": {"http://a/y"}})
		if urls[0].String() != want || (len(urls) == 2) == secure {
			t.Errorf("secure %v: %v", secure, urls)
		}
	}
	if req.URL.Host != "" {
		t.Error("the request has changed")
	}
}
