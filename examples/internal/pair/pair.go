// Package pair tests the examples that serve a report: it starts one in two
// processes on a Redis of their own, and tries the commands of its README.
package pair

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

const childEnv = "STAMPEDE_EXAMPLE_CHILD"

// Main is the test's TestMain: in a child process it is the example's main.
func Main(m *testing.M, main func()) {
	if os.Getenv(childEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var listening = regexp.MustCompile(`listening on (http://\S+)`)

// start starts a process, and returns where it listens once it does.
func start(t *testing.T, redisAddr string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-listen", "127.0.0.1:0", "-redis", "redis://"+redisAddr)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := redistest.StartChild(cmd); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		m := listening.FindStringSubmatch(lines.Text())
		if m == nil {
			t.Log(lines.Text())
			continue
		}
		t.Cleanup(func() {
			_ = cmd.Process.Signal(os.Interrupt)
			rest, _ := io.ReadAll(out)
			if err := cmd.Wait(); err != nil {
				t.Errorf("the example ended with %v: %s", err, rest)
			}
		})
		return m[1]
	}
	t.Fatalf("the example ended without listening: %v", cmd.Wait())
	return ""
}

// A got is a response.
type got struct {
	status      int
	body        string
	cache, said string // Cache-Status, Cache-Control
	age         string
	err         error
}

func ask(method, url, user string) got {
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		return got{err: err}
	}
	if user != "" {
		r.SetBasicAuth(user, "")
	}
	resp, err := (&http.Client{Timeout: time.Minute}).Do(r)
	if err != nil {
		return got{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	h := resp.Header
	return got{resp.StatusCode, string(body), h.Get("Cache-Status"), h.Get("Cache-Control"), h.Get("Age"), err}
}

// FirstRequests asks two fresh processes, each in the moment it listens: their
// requests are one run.
func FirstRequests(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	const each = 10
	var all [2 * each]got
	var wg sync.WaitGroup
	urls := [2]string{}
	for i := range urls {
		wg.Go(func() { urls[i] = start(t, server.Addr()) })
	}
	wg.Wait()
	for i := range all {
		wg.Go(func() { all[i] = ask("GET", urls[i%2]+"/report", "") })
	}
	wg.Wait()
	for _, g := range all {
		if g.err != nil || g.status != 200 || g.body != all[0].body || !strings.HasPrefix(g.body, "report, run 1 of process ") {
			t.Errorf("%+v, the first one was answered %q", g, all[0].body)
		}
	}
}

// README tries its lines.
func README(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	one, two := start(t, server.Addr()), start(t, server.Addr())
	first := ask("GET", one+"/report", "")
	if first.status != 200 || !strings.HasPrefix(first.cache, "http;fwd=uri-miss;stored;ttl=") {
		t.Errorf("%+v", first)
	}
	other := ask("GET", two+"/report", "")
	// The first client has its answer before it is stored: the second may still wait.
	hit := strings.HasPrefix(other.cache, "http;hit;ttl=") || strings.HasSuffix(other.cache, ";collapsed") || strings.Contains(other.cache, ";collapsed;")
	if other.body != first.body || other.age == "" || !hit {
		t.Errorf("%+v", other)
	}
	for _, user := range []string{"alice", "bob"} {
		me := ask("GET", one+"/me", user)
		if me.body != fmt.Sprintf("page of %q\n", user) || me.said != "private" || !strings.HasSuffix(me.cache, ";detail=private") {
			t.Errorf("%+v", me)
		}
	}
	if g := ask("POST", one+"/report", ""); g.status != 200 {
		t.Errorf("%+v", g)
	}
	again := ask("GET", one+"/report", "")
	if again.body == first.body || again.status != 200 {
		t.Errorf("after a POST: %+v", again)
	}
	// The other process has its answer near until it has heard of the POST.
	for end := time.Now().Add(30 * time.Second); ask("GET", two+"/report", "").body != again.body; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the other process hasn't forgotten")
		}
	}
}
