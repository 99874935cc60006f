// Command worker does one job in several processes. It succeeds with a chance of 15 %, is
// tried at most five times, and with -kill its workers are killed at work:
//
//	go run ./examples/worker [-procs 4] [-kill] [-json]
//
// It starts its own redis-server, which must be installed. The exit status is 1 if the job
// was done twice, tried more than five times, or by two workers at once.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
	"github.com/stampedeguard/stampede/lock"
)

const maxAttempts = 5

// A message is a report of a worker: "acquired", "error", "success" with the time, or
// "ended" with the report.
type message struct {
	What    string
	Attempt int
	At      time.Time
	Text    string
}

// work is a child: it does the job, or waits until it is done.
func work(parent *spawn.Parent) error {
	var addr string
	if err := parent.Hear(&addr); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	store, err := cache.NewRedis(client, cache.Options{Namespace: "example"})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	worker, err := lock.NewWorker(store, "example", lock.WorkerPolicy{
		MaxAttempts: maxAttempts,
		Lease:       time.Second,
		Backoff:     func(int) time.Duration { return 50 * time.Millisecond },
	})
	if err != nil {
		return err
	}
	defer func() { _ = worker.Close() }()
	report, err := worker.Do(context.Background(), "job", func(ctx context.Context, a *lock.Attempt) error {
		parent.Tell(message{"acquired", a.Number, time.Now(), fmt.Sprintf("previous: %v", a.Previous)})
		select {
		case <-time.After(100*time.Millisecond + rand.N(200*time.Millisecond)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if rand.Float64() < 0.15 {
			parent.Tell(message{"success", a.Number, time.Now(), ""})
			return nil
		}
		parent.Tell(message{"error", a.Number, time.Now(), ""})
		return errors.New("out of luck")
	})
	text := fmt.Sprintf("done %v, by another %v, attempts %d", report.Done, report.ByOther, report.Attempts)
	if err != nil {
		text = err.Error()
	}
	parent.Tell(message{"ended", report.Attempts, time.Now(), text})
	return nil
}

func main() {
	spawn.Main("worker", work)
	procs := flag.Int("procs", 4, "processes")
	kill := flag.Bool("kill", false, "kill workers at work; others take their places")
	asJSON := flag.Bool("json", false, "print one JSON object")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	o, err := run(*procs, *kill, *asJSON)
	if err != nil {
		log.Fatal("worker: ", err)
	}
	if *asJSON {
		_ = json.NewEncoder(os.Stdout).Encode(o)
	} else {
		fmt.Printf("done %d times, %d attempts, at most %d at once, %d workers killed\n", o.Done, o.Attempts, o.MaxAtOnce, o.Kills)
	}
	if o.Done > 1 || o.Attempts > maxAttempts || o.MaxAtOnce > 1 {
		os.Exit(1)
	}
}

type outcome struct {
	Done      int `json:"done"`
	Attempts  int `json:"attempts"`
	MaxAtOnce int `json:"max_at_once"`
	Kills     int `json:"kills"`
}

// A span is an attempt, from acquired to its end or to the death of its process.
type span struct{ from, to time.Time }

// A fleet is the workers, and their reports.
type fleet struct {
	addr  string
	quiet bool

	mu      sync.Mutex
	spans   []*span
	at      map[*spawn.Process]*span // attempts that run
	outcome outcome
	working chan *spawn.Process // those that have begun an attempt
	ended   sync.WaitGroup
}

func run(procs int, kill, quiet bool) (outcome, error) {
	server, err := redistest.StartStandalone(context.Background(), redistest.StandaloneConfig{})
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = server.Stop() }()
	f := &fleet{addr: server.Addr(), quiet: quiet, at: map[*spawn.Process]*span{}, working: make(chan *spawn.Process, 100)}
	for range procs {
		if err := f.start(); err != nil {
			return outcome{}, err
		}
	}
	done := make(chan struct{})
	go func() { f.ended.Wait(); close(done) }()
	for {
		select {
		case p := <-f.working:
			if kill && f.kills() < 2 && rand.IntN(2) == 0 {
				if err := f.kill(p); err != nil {
					return outcome{}, err
				}
			}
		case <-done:
			return f.sum(), nil
		case <-time.After(time.Minute):
			return outcome{}, errors.New("the job has not ended after a minute")
		}
	}
}

func (f *fleet) kills() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.outcome.Kills
}

func (f *fleet) start() error {
	started := make(chan *spawn.Process, 1)
	var self *spawn.Process
	f.ended.Add(1)
	p, err := spawn.Start("worker", spawn.Lines(func(m *message) {
		if self == nil {
			self = <-started
		}
		f.take(self, m)
	}))
	if err != nil {
		return err
	}
	started <- p
	p.Tell(f.addr)
	go func() { // ends with the process
		defer f.ended.Done()
		_ = p.Wait(context.Background())
	}()
	return nil
}

func (f *fleet) take(p *spawn.Process, m *message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.quiet {
		log.Printf("%d %s attempt %d %s", p.PID(), m.What, m.Attempt, m.Text)
	}
	switch m.What {
	case "acquired":
		f.outcome.Attempts = max(f.outcome.Attempts, m.Attempt)
		s := &span{from: m.At, to: time.Now().Add(time.Hour)}
		f.spans, f.at[p] = append(f.spans, s), s
		f.working <- p
	case "success":
		f.outcome.Done++
		f.at[p].to = m.At
	case "error":
		f.at[p].to = m.At
	}
}

// kill ends a worker, and starts another.
func (f *fleet) kill(p *spawn.Process) error {
	time.Sleep(50 * time.Millisecond) // it is at work
	if p.Died() != nil {
		return nil
	}
	if err := p.Kill(); err != nil {
		return err
	}
	f.mu.Lock()
	f.outcome.Kills++
	if now := time.Now(); now.Before(f.at[p].to) {
		f.at[p].to = now
	}
	if !f.quiet {
		log.Printf("%d killed", p.PID())
	}
	f.mu.Unlock()
	return f.start()
}

// sum counts the attempts that ran at once.
func (f *fleet) sum() outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.spans {
		n := 0
		for _, b := range f.spans {
			if !b.from.After(a.from) && a.from.Before(b.to) {
				n++
			}
		}
		f.outcome.MaxAtOnce = max(f.outcome.MaxAtOnce, n)
	}
	return f.outcome
}
