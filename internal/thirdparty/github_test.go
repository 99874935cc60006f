package thirdparty_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-github/v75/github"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/middleware/transport"
)

// A fakeGitHub follows https://docs.github.com/en/rest/using-the-rest-api for quotas and
// conditional requests: a 304 costs nothing, and with nothing left the answer is 403.
type fakeGitHub struct {
	*httptest.Server
	mu        sync.Mutex
	stars     int
	remaining int
	calls     int
	unchanged int // calls answered by a 304
	refused   int
	reset     time.Time
	maxAge    int
}

func newFakeGitHub(t *testing.T, remaining int) *fakeGitHub {
	f := &fakeGitHub{remaining: remaining, reset: time.Now().Add(time.Hour), maxAge: 60}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeGitHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	name := strings.TrimPrefix(r.URL.Path, "/repos/")
	who := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	etag := `W/"` + strconv.Itoa(f.stars) + who + name + `"`
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "private, max-age="+strconv.Itoa(f.maxAge)+", s-maxage=60")
	h.Set("Vary", "Accept, Authorization, Cookie, X-GitHub-OTP,Accept-Encoding, Accept, X-Requested-With")
	h.Set("ETag", etag)
	same := r.Header.Get("If-None-Match") == etag
	if !same {
		if f.remaining == 0 {
			f.refused++
		} else {
			f.remaining--
		}
	}
	h.Set("X-RateLimit-Limit", "5000")
	h.Set("X-RateLimit-Remaining", strconv.Itoa(f.remaining))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(f.reset.Unix(), 10))
	switch {
	case same:
		f.unchanged++
		w.WriteHeader(http.StatusNotModified)
	case f.refused > 0:
		h.Set("Cache-Control", "no-cache")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": "API rate limit exceeded"})
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{"full_name": name, "description": "for " + who, "stargazers_count": f.stars})
	}
}

func (f *fakeGitHub) counts() (calls, unchanged, refused, remaining int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls, f.unchanged, f.refused, f.remaining
}

func (f *fakeGitHub) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// process returns the client of GitHub's API of one process of a fleet. The process has a
// store and a transport. The client knows nothing of either.
func process(t *testing.T, server *redistest.Server, f *fakeGitHub, token string, quota guard.Budget) *github.Client {
	t.Helper()
	rdb := server.Client()
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	rt, err := transport.New(store, transport.Options{
		Base: &http.Transport{},
		// The budget learns from the hosts that are named.
		Hosts: map[string]transport.HostPolicy{f.URL[len("http://"):]: {
			Budget: quota,
			Cost: func(_ *http.Request, resp *http.Response) int {
				if resp != nil && resp.StatusCode == http.StatusNotModified {
					return 0
				}
				return 1
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = rt.Close()
		rt.CloseIdleConnections()
		_ = store.Close()
		_ = rdb.Close()
	})
	client := github.NewClient(&http.Client{Transport: rt, Timeout: 30 * time.Second}).WithAuthToken(token)
	client.BaseURL, err = url.Parse(f.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func repository(t *testing.T, c *github.Client, name, token string, stars int) *github.Response {
	t.Helper()
	repo, resp, err := c.Repositories.Get(context.Background(), "golang", name)
	if err != nil {
		t.Fatal(err)
	}
	if repo.GetDescription() != "for "+token || repo.GetStargazersCount() != stars || repo.GetFullName() != "golang/"+name {
		t.Errorf("got %v for the token %s with %d stars", repo, token, stars)
	}
	return resp
}

func TestGitHubIsCalledOncePerFleet(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	f := newFakeGitHub(t, 5000)
	a, b, other := process(t, server, f, "alice", nil), process(t, server, f, "alice", nil), process(t, server, f, "bob", nil)

	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() { repository(t, []*github.Client{a, b}[i%2], "go", "alice", 0) })
	}
	wg.Wait()
	if calls, _, _, remaining := f.counts(); calls != 1 || remaining != 4999 {
		t.Errorf("40 requests of two processes made %d calls, and %d of 5000 are left", calls, remaining)
	}
	repository(t, other, "go", "bob", 0) // a client with another token makes its own call

	// Stale now and again: asked about, at no cost.
	f.change(func() { f.maxAge = 0 })
	for _, name := range []string{"tools", "net"} {
		repository(t, a, name, "alice", 0)
	}
	_, unchanged, _, remaining := f.counts()
	for range 10 {
		repository(t, a, "tools", "alice", 0)
		repository(t, b, "net", "alice", 0)
	}
	_, now, _, left := f.counts()
	if now == unchanged || left < remaining-2 { // pages that weren't stored yet cost
		t.Errorf("20 requests for unchanged pages had %d 304s and cost %d", now-unchanged, remaining-left)
	}

	f.change(func() { f.stars = 1 })
	resp := repository(t, b, "tools", "alice", 1)
	if got := resp.Header.Get("Cache-Status"); !strings.HasPrefix(got, "stampede;fwd=stale") {
		t.Errorf("Cache-Status is %q", got)
	}
	if _, _, refused, _ := f.counts(); refused != 0 {
		t.Errorf("%d calls were refused", refused)
	}
}

func TestSpentGitHubQuotaStopsCalls(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	f := newFakeGitHub(t, 3)
	rdb := server.Client()
	quota, err := budget.New(rdb, "github", budget.Limit{Rate: 5000, Per: time.Hour, Burst: 100, Reserve: -1}, budget.Options{Namespace: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = quota.Close()
		_ = rdb.Close()
	})
	a, b := process(t, server, f, "alice", quota), process(t, server, f, "alice", quota)
	for _, name := range []string{"1", "2", "3"} {
		repository(t, a, name, "alice", 0)
	}
	// The third said that nothing is left. The second process has heard of it, and
	// its client couldn't have.
	for _, c := range []*github.Client{b, a} {
		_, _, err = c.Repositories.Get(context.Background(), "golang", "4")
		var exhausted *guard.ExhaustedError
		var limited *github.RateLimitError
		if !errors.As(err, &exhausted) && !errors.As(err, &limited) {
			t.Errorf("the error is %v", err)
		}
	}
	if calls, _, refused, _ := f.counts(); calls != 3 || refused != 0 {
		t.Errorf("%d calls, %d of them refused, want 3 and none", calls, refused)
	}
	repository(t, b, "1", "alice", 0) // stored entries are still served
}

func TestGitHubsRefusalIsKnownToTheFleet(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	f := newFakeGitHub(t, 0)
	a, b := process(t, server, f, "alice", nil), process(t, server, f, "alice", nil)
	var limited *github.RateLimitError
	if _, _, err := a.Repositories.Get(context.Background(), "golang", "go"); !errors.As(err, &limited) {
		t.Errorf("the error is %v, want a RateLimitError", err)
	}
	for range 5 {
		_, resp, err := b.Repositories.Get(context.Background(), "golang", "go")
		if err == nil || resp == nil || resp.StatusCode != http.StatusForbidden || resp.Header.Get("Retry-After") == "" {
			t.Errorf("got %v, %v, want a 403 that says when", resp, err)
		}
	}
	if calls, _, _, _ := f.counts(); calls > 2 { // b may have come while a's was under way
		t.Errorf("%d calls were made", calls)
	}
}
