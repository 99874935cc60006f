package rfc9111_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/stampedeguard/stampede/internal/rfc9111"
)

type statusRow struct {
	rule
	status rfc9111.Status
	want   string
}

func left(d time.Duration) rfc9111.Seconds { return rfc9111.Seconds{Set: true, Value: d} }

var statusRows = []statusRow{
	{rule{"9211 2", "a cache is named by a token"}, rfc9111.Status{Cache: "zebra"}, "zebra"},
	{rule{"9211 2", "or by a string, where the name can't be one"}, rfc9111.Status{Cache: "my \"cache\""}, `"my \"cache\""`},
	{rule{"9211 2.1", "hit"}, rfc9111.Status{Cache: "a", Hit: true}, "a;hit"},
	{rule{"9211 2.1", "hit excludes fwd and its parameters"}, rfc9111.Status{Cache: "a", Hit: true, Fwd: "miss", FwdStatus: 200, Stored: true, Collapsed: true}, "a;hit"},
	{rule{"9211 2.2", "fwd"}, rfc9111.Status{Cache: "a", Fwd: rfc9111.FwdURIMiss}, "a;fwd=uri-miss"},
	{rule{"9211 2.3", "fwd-status"}, rfc9111.Status{Cache: "a", Fwd: rfc9111.FwdStale, FwdStatus: 304}, "a;fwd=stale;fwd-status=304"},
	{rule{"9211 2.4", "ttl in seconds"}, rfc9111.Status{Cache: "a", Hit: true, TTL: left(90 * time.Second)}, "a;hit;ttl=90"},
	{rule{"9211 2.4", "ttl is negative for a stale response"}, rfc9111.Status{Cache: "a", Hit: true, TTL: left(-500 * time.Millisecond)}, "a;hit;ttl=-1"},
	{rule{"9211 2.4", "ttl of zero is there"}, rfc9111.Status{Cache: "a", Hit: true, TTL: left(0)}, "a;hit;ttl=0"},
	{rule{"9211 2.5", "stored"}, rfc9111.Status{Cache: "a", Fwd: rfc9111.FwdMiss, Stored: true}, "a;fwd=miss;stored"},
	{rule{"9211 2.6", "collapsed"}, rfc9111.Status{Cache: "a", Fwd: rfc9111.FwdMiss, Collapsed: true}, "a;fwd=miss;collapsed"},
	{rule{"9211 2.7", "key"}, rfc9111.Status{Cache: "a", Hit: true, Key: "GET /é\n"}, `a;hit;key="GET /%C3%A9%0A"`},
	{rule{"9211 2.8", "detail is a token where it can be"}, rfc9111.Status{Cache: "a", Fwd: rfc9111.FwdMiss, Detail: "no-store"}, "a;fwd=miss;detail=no-store"},
	{rule{"9211 2.8", "detail is a string otherwise"}, rfc9111.Status{Cache: "a", Fwd: rfc9111.FwdMiss, Detail: "too large"}, `a;fwd=miss;detail="too large"`},
}

func TestStatus(t *testing.T) {
	run(t, statusRows, func(t *testing.T, r statusRow) {
		got := r.status.String()
		if got != r.want {
			t.Errorf("got %s, want %s", got, r.want)
		}
		if _, err := httpsfv.UnmarshalList([]string{got}); err != nil {
			t.Errorf("%s isn't a list: %v", got, err)
		}
	})
}

// RFC 9211, 2: the cache nearest to the client comes last.
func TestStatusIsAppended(t *testing.T) {
	h := http.Header{"Cache-Status": {"origin;hit"}}
	was := h["Cache-Status"]
	rfc9111.Status{Cache: "a", Hit: true}.AppendTo(h)
	if got := h["Cache-Status"]; !slices.Equal(got, []string{"origin;hit", "a;hit"}) {
		t.Errorf("got %q", got)
	}
	if len(was) != 1 {
		t.Error("the lines that were there have changed")
	}
	h.Set("Cache-Status", "no list?")
	rfc9111.Status{Cache: "a", Hit: true}.AppendTo(h)
	if got := h["Cache-Status"]; !slices.Equal(got, []string{"a;hit"}) {
		t.Errorf("after a malformed field: %q", got)
	}
}
