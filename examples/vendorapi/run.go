package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// A row is the result of one mode: the calls that reached its vendor, and the
// answers of its clients.
type row struct {
	Mode         string `json:"mode"`
	Calls        int    `json:"calls"`         // that the vendor received
	Rejected     int    `json:"rejected"`      // of these, with 429
	Cost         int    `json:"cost"`          // of the others, in cents
	Answers      int64  `json:"answers"`       // that clients were given
	StaleAnswers int64  `json:"stale_answers"` // of these, older than they should be
	Limit        int    `json:"limit"`         // calls that the terms allow in this time

	failed int64
}

// A scene is one mode, under way.
type scene struct {
	mode    string
	vendor  *vendor
	clients []*proc
	started time.Time
	took    time.Duration // 0: not over

	calls, rejected int // at its end: later calls don't count
}

// A proc is one client process.
type proc struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *json.Decoder

	mu   sync.Mutex
	last tally
}

func run(ctx context.Context, c config, live *table) ([]row, error) {
	logging.Disable()
	redisURL, closeRedis, err := openRedis(ctx, c.redisURL)
	if err != nil {
		return nil, err
	}
	defer closeRedis()
	ctx, cancel := context.WithCancel(ctx) // kills the remaining processes
	defer cancel()
	var id [4]byte
	rand.Read(id[:])
	var scenes []*scene
	defer func() {
		for _, s := range scenes {
			s.end(cancel)
		}
	}()
	for _, mode := range modes {
		s, err := openScene(ctx, c, job{
			Mode: mode, Redis: redisURL, Namespace: "vendorapi-" + hex.EncodeToString(id[:]) + "-" + mode,
			Limit: c.limit, Demand: c.demand,
		})
		scenes = append(scenes, s)
		if err != nil {
			return nil, err
		}
	}
	failures := make(chan error, len(modes)*c.procs)
	var listening sync.WaitGroup
	for _, s := range scenes {
		s.begin(&listening, failures)
	}
	err = watch(ctx, c, scenes, live, failures)
	for _, s := range scenes {
		s.stop()
	}
	timeout := time.AfterFunc(10*time.Second, cancel)
	listening.Wait()
	timeout.Stop()
	live.end()
	close(failures)
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	return rowsOf(c, scenes), err
}

// watch runs the scenes, and shows their progress.
func watch(ctx context.Context, c config, scenes []*scene, live *table, failures chan error) error {
	over := time.NewTimer(c.last)
	defer over.Stop()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return nil
		case err := <-failures:
			return err
		case <-tick.C:
			live.show(c, rowsOf(c, scenes), time.Since(scenes[0].started))
		}
	}
}

func openScene(ctx context.Context, c config, j job) (*scene, error) {
	s := &scene{mode: j.Mode}
	var err error
	if s.vendor, err = openVendor(c.limit); err != nil {
		return s, err
	}
	j.Vendor = s.vendor.url
	exe, err := os.Executable()
	if err != nil {
		return s, fmt.Errorf("can't find this program to start it again: %w", err)
	}
	for i := range c.procs {
		p := &proc{cmd: exec.CommandContext(ctx, exe, childArg)}
		p.cmd.Stderr = os.Stderr
		if p.stdin, err = p.cmd.StdinPipe(); err != nil {
			return s, err
		}
		stdout, err := p.cmd.StdoutPipe()
		if err != nil {
			return s, err
		}
		if err := p.cmd.Start(); err != nil {
			return s, fmt.Errorf("can't start client %d: %w", i, err)
		}
		s.clients = append(s.clients, p)
		p.out = json.NewDecoder(stdout)
		if err := json.NewEncoder(p.stdin).Encode(j); err != nil {
			return s, err
		}
	}
	for i, p := range s.clients {
		var ready tally
		if err := p.out.Decode(&ready); err != nil || ready.Error != "" {
			return s, fmt.Errorf("client %d of mode %s isn't ready: %s %w", i, s.mode, ready.Error, err)
		}
	}
	return s, nil
}

// begin starts the clients, and listens to them until they end.
func (s *scene) begin(wg *sync.WaitGroup, failures chan<- error) {
	s.started = time.Now()
	for i, p := range s.clients {
		_, _ = io.WriteString(p.stdin, "\"go\"\n")
		wg.Go(func() {
			for {
				var t tally
				err := p.out.Decode(&t)
				if err == nil {
					p.mu.Lock()
					p.last = t
					p.mu.Unlock()
				}
				if err == nil && t.Done && t.Error != "" {
					err = errors.New(t.Error)
				}
				if err != nil {
					failures <- fmt.Errorf("client %d of mode %s ended: %w", i, s.mode, err)
				}
				if err != nil || t.Done {
					return
				}
			}
		})
	}
}

// stop tells the clients that it is over.
func (s *scene) stop() {
	s.calls, s.rejected = s.vendor.counted()
	s.took = time.Since(s.started)
	for _, p := range s.clients {
		_ = p.stdin.Close()
	}
}

// end waits for the clients to be gone, and closes the vendor.
func (s *scene) end(kill context.CancelFunc) {
	timeout := time.AfterFunc(2*time.Second, kill)
	defer timeout.Stop()
	for _, p := range s.clients {
		_ = p.stdin.Close()
		_ = p.cmd.Wait()
	}
	if s.vendor != nil {
		s.vendor.close()
	}
}

func rowsOf(c config, scenes []*scene) []row {
	rows := make([]row, len(scenes))
	for i, s := range scenes {
		took, calls, rejected := s.took, s.calls, s.rejected
		if took == 0 {
			calls, rejected = s.vendor.counted()
			took = time.Since(s.started)
		}
		r := row{Mode: s.mode, Calls: calls, Rejected: rejected, Limit: int(float64(c.limit)*took.Seconds()) + burst}
		r.Cost = (r.Calls - r.Rejected) * price
		for _, p := range s.clients {
			p.mu.Lock()
			r.Answers += p.last.Answers
			r.StaleAnswers += p.last.Stale
			r.failed += p.last.Failed
			p.mu.Unlock()
		}
		rows[i] = r
	}
	return rows
}

// openRedis returns a Redis that has answered: the one that -redis names, or an
// embedded one, which ends with this process.
func openRedis(ctx context.Context, url string) (string, func(), error) {
	closeIt := func() {}
	if url == "" {
		embedded := miniredis.NewMiniRedis()
		embedded.ClockTTL(true) // entries expire as time passes, as in Redis
		if err := embedded.Start(); err != nil {
			return "", nil, fmt.Errorf("can't start the embedded Redis: %w", err)
		}
		url, closeIt = "redis://"+embedded.Addr()+"/0", embedded.Close
	}
	opts, err := redis.ParseURL(url)
	if err != nil {
		return "", nil, fmt.Errorf("-redis: %w", err)
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := rdb.Ping(ctx).Err(); err != nil {
		closeIt()
		return "", nil, fmt.Errorf("the Redis at %s doesn't answer: %w", opts.Addr, err)
	}
	return url, closeIt, nil
}
