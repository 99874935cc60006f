package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/stampedeguard/stampede/guard/budget"
)

// childArg as the only argument makes this program a client.
const childArg = "vendorapi-client"

// A job is the work of a client, and the addresses that it needs.
type job struct {
	Mode, Vendor, Redis, Namespace string
	Limit, Demand                  int
}

// A tally counts the answers of a client so far.
type tally struct {
	Answers int64 `json:"answers"`
	Stale   int64 `json:"stale"`
	Failed  int64 `json:"failed"`
	Done    bool  `json:"done"` // the last one
	Error   string
}

const (
	// keys are asked for unevenly, by Zipf's law.
	keys = 100
	// impatient is how long a client waits.
	impatient = 2 * time.Second
	// unanswered bounds the requests of a client that wait at once.
	unanswered = 1000
)

// childMain works until standard input ends: at its first line it begins.
func childMain() {
	signal.Ignore(os.Interrupt) // Ctrl-C is the parent's to handle
	logging.Disable()
	out := json.NewEncoder(os.Stdout)
	in := json.NewDecoder(os.Stdin)
	var j job
	if in.Decode(&j) != nil {
		os.Exit(1) // the parent is gone
	}
	c := &client{job: j, web: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: unanswered}}}
	w, err := openWay(j, c.ask)
	if err != nil {
		_ = out.Encode(tally{Done: true, Error: err.Error()})
		os.Exit(1)
	}
	_ = out.Encode(tally{}) // ready
	var start string
	if in.Decode(&start) != nil {
		os.Exit(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	c.work(ctx, w, func(t tally) {
		if out.Encode(t) != nil {
			os.Exit(1)
		}
	})
	err = w.close()
	last := c.tally()
	last.Done = true
	if err != nil {
		last.Error = err.Error()
	}
	_ = out.Encode(last)
}

type client struct {
	job
	web                           http.Client
	answers, stale, failed, under atomic.Int64
}

func (c *client) tally() tally {
	return tally{Answers: c.answers.Load(), Stale: c.stale.Load(), Failed: c.failed.Load()}
}

// work asks at the job's rate until ctx ends, and reports its tally now and then.
func (c *client) work(ctx context.Context, w *way, tell func(tally)) {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), 1)), 1.1, 5, keys-1)
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(time.Second / time.Duration(min(c.Demand, 1000)))
	defer tick.Stop()
	news := time.NewTicker(250 * time.Millisecond)
	defer news.Stop()
	start, asked := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-news.C:
			tell(c.tally())
		case <-tick.C:
			for due := int(time.Since(start).Seconds() * float64(c.Demand)); asked < due; asked++ {
				if c.under.Load() >= unanswered {
					c.failed.Add(1)
					continue
				}
				key := strconv.FormatUint(zipf.Uint64(), 10)
				c.under.Add(1)
				wg.Go(func() { defer c.under.Add(-1); c.get(ctx, w, key) })
			}
		}
	}
}

func (c *client) get(ctx context.Context, w *way, key string) {
	ctx, cancel := context.WithTimeout(ctx, impatient)
	defer cancel()
	old, err := w.get(ctx, key)
	switch {
	case err != nil:
		c.failed.Add(1)
	case old:
		c.stale.Add(1)
		fallthrough
	default:
		c.answers.Add(1)
	}
}

// ask calls the vendor. The budget heeds the response.
func (c *client) ask(ctx context.Context, key string, learn *budget.Budget) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Vendor+"/quotes/"+key, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.web.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if learn != nil {
		if _, err := learn.Learn(ctx, resp.StatusCode, resp.Header); err != nil {
			return "", err
		}
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the vendor answered %s", resp.Status)
	}
	return string(body), nil
}
