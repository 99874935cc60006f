package echoguard_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/middleware"
	"github.com/stampedeguard/stampede/middleware/echoguard"
)

const childEnv = "STAMPEDE_ECHOGUARD_CHILD"

var bounds = os.Getenv("STAMPEDE_BOUNDS") == "1"

func TestMain(m *testing.M) {
	if addr := os.Getenv(childEnv); addr != "" {
		if err := child(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child serves pages of half a second until its standard input ends.
func child(redisAddr string) error {
	client := redis.NewClient(&redis.Options{Addr: redisAddr})
	defer client.Close()
	store, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	m, err := middleware.New(store, middleware.Options{Host: "site.example", TTL: time.Minute})
	if err != nil {
		return err
	}
	defer m.Close()
	var runs atomic.Int64
	e := echo.New()
	e.GET("/page/:n", func(c echo.Context) error {
		runs.Add(1)
		time.Sleep(500 * time.Millisecond)
		return c.String(200, "page "+c.Param("n"))
	}, echoguard.Wrap(m))
	e.GET("/bare/:n", func(c echo.Context) error {
		time.Sleep(500 * time.Millisecond)
		return c.String(200, "page "+c.Param("n"))
	})
	e.GET("/runs", func(c echo.Context) error { return c.String(200, fmt.Sprint(runs.Swap(0))) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() { _ = http.Serve(l, e) }()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func startChild(t *testing.T, redisAddr string) (url string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+redisAddr)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := redistest.StartChild(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + strings.TrimSpace(line)
}

// Two thousand requests at once for a cold page of 500 ms, in two processes on a
// real Redis, are one run, and answered when it ends.
func TestFleetColdPage(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	urls := []string{startChild(t, server.Addr()), startChild(t, server.Addr())}
	requests, rounds := 400, 1
	if bounds {
		requests, rounds = 2000, 5
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: requests}}
	defer client.CloseIdleConnections()
	ask := func(url string) (string, error) {
		resp, err := client.Get(url)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	together := func(path, want string) time.Duration {
		var wg sync.WaitGroup
		begin := make(chan struct{})
		var last atomic.Int64
		var start time.Time
		for i := range requests {
			wg.Go(func() {
				<-begin
				body, err := ask(urls[i%2] + path)
				if err != nil || want != "" && body != want {
					t.Errorf("%q, %v", body, err)
				}
				if d := int64(time.Since(start)); d > last.Load() {
					last.Store(d)
				}
			})
		}
		start = time.Now()
		close(begin)
		wg.Wait()
		return time.Duration(last.Load())
	}
	together("/runs", "") // opens the connections
	together("/runs", "")
	for _, u := range urls {
		if _, err := ask(u + "/page/warm-up"); err != nil {
			t.Fatal(err)
		}
		_, _ = ask(u + "/runs")
	}
	var took, bare []time.Duration
	for n := range rounds {
		// The baseline: as many requests to a handler that only sleeps.
		bare = append(bare, together(fmt.Sprint("/bare/", n), fmt.Sprint("page ", n)))
		took = append(took, together(fmt.Sprint("/page/", n), fmt.Sprint("page ", n)))
		total := 0
		for _, u := range urls {
			var runs int
			if s, err := ask(u + "/runs"); err != nil {
				t.Fatal(err)
			} else if _, err := fmt.Sscan(s, &runs); err != nil {
				t.Fatal(err)
			}
			total += runs
		}
		if total != 1 {
			t.Errorf("round %d: %d runs", n, total)
		}
	}
	slices.Sort(took)
	slices.Sort(bare)
	median := took[len(took)/2]
	t.Logf("%d requests: the last was answered after %v (median of %d), from %v to %v; by the bare handler after %v",
		requests, median, rounds, took[0], took[len(took)-1], bare[len(bare)/2])
	if bounds && median > 550*time.Millisecond {
		t.Errorf("%v", median)
	}
}
