package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// childArg as the only argument makes this program a child.
const childArg = "stampede-child"

// The key that is cold, and the one that each process has used before.
const (
	coldKey = "cold"
	warmKey = "warm"
)

// childMain does one job. The parent holds the other end of standard input: when
// it closes, or the parent dies in whatever way, the child ends at once.
func childMain() {
	signal.Ignore(os.Interrupt) // Ctrl-C is the parent's to handle
	quiet()
	orders := make(chan message)
	go func() { // ends with the process
		in := json.NewDecoder(os.Stdin)
		for {
			var m message
			if in.Decode(&m) != nil {
				os.Exit(0)
			}
			orders <- m
		}
	}()
	c := &child{orders: orders, out: json.NewEncoder(os.Stdout)}
	if err := c.run(); err != nil {
		c.send(message{Type: msgFailed, Error: err.Error()})
	}
	<-orders // none comes: the parent has the last word
}

type child struct {
	orders <-chan message

	mu  sync.Mutex
	out *json.Encoder

	job      job
	web      *http.Client
	answered atomic.Int64
}

func (c *child) send(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.Encode(m) != nil {
		os.Exit(1) // the parent has gone
	}
}

func (c *child) expect(kind string) (message, error) {
	m := <-c.orders
	if m.Type != kind {
		return m, fmt.Errorf("the parent sent %q instead of %q", m.Type, kind)
	}
	return m, nil
}

func (c *child) run() error {
	m, err := c.expect(msgJob)
	if err != nil {
		return err
	}
	c.job = *m.Job
	opts, err := redis.ParseURL(c.job.Redis)
	if err != nil {
		return err
	}
	var wire meter
	wire.attach(opts)
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	mode, err := openMode(c.job.Mode, rdb, c.job.Namespace)
	if err != nil {
		return err
	}
	if err := c.warm(mode); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	c.send(message{Type: msgReady})
	if m, err = c.expect(msgGo); err != nil {
		return err
	}
	before := wire.commands.Load()
	r := c.stampede(mode, time.Unix(0, m.At))
	r.Notes = mode.close()
	r.RedisCommands = wire.commands.Load() - before
	c.send(message{Type: msgResult, Result: r})
	return nil
}

// warm gets the process into the state of one that has been running: connected,
// scripts loaded, subscribed. The key that counts stays cold.
func (c *child) warm(mode mode) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	c.web = &http.Client{Transport: &http.Transport{Protocols: protocols}}
	if _, err := c.ask(ctx, "/warm"); err != nil {
		return err
	}
	_, err := mode.get(ctx, warmKey+strconv.Itoa(c.job.Proc), func(context.Context) (string, error) { return "0", nil })
	return err
}

// fetch asks the origin. Its answer is the number of the fetch.
func (c *child) fetch(ctx context.Context) (string, error) { return c.ask(ctx, "/value") }

func (c *child) ask(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.job.Origin+path, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set(procHeader, strconv.Itoa(c.job.Proc))
	resp, err := c.web.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New("the origin answered " + resp.Status)
	}
	return string(body), err
}

// stampede starts all callers at the given time and waits for them. Latencies count
// from that time, whenever the scheduler ran a caller.
func (c *child) stampede(mode mode, start time.Time) *result {
	ctx, cancel := context.WithTimeout(context.Background(), time.Until(start)+c.job.Timeout)
	defer cancel()
	r := &result{Answers: make([]answer, c.job.Callers)}
	errs := make([]error, c.job.Callers)
	gun := make(chan struct{})
	var callers sync.WaitGroup
	for i := range c.job.Callers {
		callers.Go(func() {
			<-gun
			v, err := mode.get(ctx, coldKey, c.fetch)
			after := time.Since(start)
			id, _ := strconv.Atoi(v)
			r.Answers[i], errs[i] = answer{After: after, Fetch: id, Failed: err != nil}, err
			c.answered.Add(1)
		})
	}
	stop := c.reportProgress()
	time.Sleep(time.Until(start))
	close(gun)
	callers.Wait()
	stop()
	for _, err := range errs {
		if err != nil {
			r.FirstError = err.Error()
			break
		}
	}
	return r
}

// reportProgress tells the parent now and then how far it is, until stopped.
func (c *child) reportProgress() (stop func()) {
	done := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		last := int64(0)
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if n := c.answered.Load(); n != last {
					last = n
					c.send(message{Type: msgProgress, Answered: int(n)})
				}
			}
		}
	})
	return func() { close(done); reporter.Wait() }
}
