package budget_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/guard/budget"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// Real processes: this test binary, started again with a job in its environment.
// A child says "ready", works until its standard input ends, and then prints
// its counters.

const childEnv = "STAMPEDE_BUDGET_CHILD"

// A job is the work of a child.
type job struct {
	Redis  string // address
	User   string // of the Redis, with the password "pw"; empty: the default one
	Limit  budget.Limit
	Hold   int    // take so many calls, and do nothing more
	Vendor string // URL to fetch from
	Demand int    // calls of Get a second
	Keys   int    // among so many keys; 0: a new one each time
	Policy guard.Policy
}

// A told has the counters of a child at its end.
type told struct {
	Asked, Answered, Stale, Exhausted, Other int64
	FirstOther                               string
	Learnt                                   time.Time // when the fleet was told of a 429
}

func childMain() {
	text := os.Getenv(childEnv)
	if text == "" {
		return
	}
	redis.SetLogger(quiet{})
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = j.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (j *job) run() error {
	o := &redis.Options{Addr: j.Redis}
	if j.User != "" {
		o.Username, o.Password = j.User, "pw"
	}
	rdb := redis.NewClient(o)
	defer rdb.Close()
	b, err := budget.New(rdb, "vendor", j.Limit, budget.Options{Namespace: "test", RedisTimeout: patient.RedisTimeout, SlotTTL: 2 * time.Second})
	if err != nil {
		return err
	}
	defer b.Close()
	if j.Hold > 0 {
		time.Sleep(300 * time.Millisecond) // until the subscription is confirmed, or refused
		for range j.Hold {
			if _, err := b.Spend(context.Background(), guard.Spending{Cost: 1}); err != nil {
				return err
			}
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return nil
	}
	store, err := cache.NewRedis(rdb, cache.Options{Namespace: "ns", RedisTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	j.Policy.Budget = b
	g, err := guard.New[string](store, "g", j.Policy)
	if err != nil {
		return err
	}
	defer g.Close()
	d := demand{job: j, budget: b, guard: g}
	d.web.Transport = &http.Transport{MaxIdleConnsPerHost: 100}
	fmt.Println("ready")
	return json.NewEncoder(os.Stdout).Encode(d.untilStdinEnds())
}

// A demand asks a guard, at a rate, for keys.
type demand struct {
	*job
	budget *budget.Budget
	guard  *guard.Guard[string]
	web    http.Client

	mu   sync.Mutex
	told told
}

func (d *demand) untilStdinEnds() told {
	in := bufio.NewReader(os.Stdin)
	_, _ = in.ReadString('\n') // the start
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, in); cancel() }()
	var wg sync.WaitGroup
	var n, under atomic.Int64
	start := time.Now()
	for ctx.Err() == nil {
		due := int64(time.Since(start).Seconds() * float64(d.Demand))
		for ; n.Load() < due; n.Add(1) {
			if under.Load() > 2000 { // late calls are left out
				continue
			}
			key := fmt.Sprint(os.Getpid(), "-", n.Load())
			if d.Keys > 0 {
				key = fmt.Sprint(n.Load() % int64(d.Keys))
			}
			under.Add(1)
			wg.Go(func() { defer under.Add(-1); d.get(ctx, key) })
		}
		time.Sleep(2 * time.Millisecond)
	}
	wg.Wait()
	return d.told
}

func (d *demand) get(ctx context.Context, key string) {
	r, err := d.guard.Load(ctx, key, func(ctx context.Context, _ *guard.Fill[string]) (string, error) { return d.fetch(ctx) })
	d.mu.Lock()
	defer d.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	d.told.Asked++
	var exhausted *budget.ExhaustedError
	switch {
	case err == nil && r.Source == guard.Stale:
		d.told.Stale++
		d.told.Answered++
	case err == nil:
		d.told.Answered++
	case errors.As(err, &exhausted):
		d.told.Exhausted++
	default:
		d.told.Other++
		d.told.FirstOther = err.Error()
	}
}

func (d *demand) fetch(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.Vendor, nil)
	if err != nil {
		return "", err
	}
	resp, err := d.web.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	advice, _ := d.budget.Learn(ctx, resp.StatusCode, resp.Header)
	if advice.Pause > 0 {
		d.mu.Lock()
		d.told.Learnt = time.Now()
		d.mu.Unlock()
	}
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(body), err
}

// A child is such a process.
type child struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startChild returns when the child is ready.
func startChild(t *testing.T, j job) *child {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: exec.Command(os.Args[0])}
	c.Env = append(os.Environ(), childEnv+"="+string(text))
	c.Stderr = os.Stderr
	if c.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := redistest.StartChild(c.Cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	if line, err := c.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	return c
}

func (c *child) start() { fmt.Fprintln(c.in) }

// finish ends the child's work and returns its counters.
func (c *child) finish(t *testing.T) told {
	t.Helper()
	_ = c.in.Close()
	var all told
	if err := json.NewDecoder(c.out).Decode(&all); err != nil {
		t.Fatal("a child told nothing: ", err)
	}
	return all
}
