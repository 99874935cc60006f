// Command worker does one job in several processes. The job has ten parts, each of which may
// fail: an attempt that does all of them succeeds with a chance of 15 %. At most five attempts
// are made. Each goes on after the last part that was done, the last one tries each part
// twice, and with -kill two workers are killed at work:
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
	"math"
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

const (
	maxAttempts = 5
	parts       = 10
	chance      = 0.15 // of an attempt that does all parts
)

// A message is a line of a worker's log: "acquired", "part", "error", "done" and "gave up" of
// the job, "locked" of a worker that waits for another one, and "ended" of a worker.
type message struct {
	Event   string
	Attempt int
	Part    int // "part": it was done, counted from 1
	At      time.Time
	Text    string
}

// A tongue tells the parent of the locks that another worker has.
type tongue struct{ parent *spawn.Parent }

func (t tongue) Observe(e cache.Event) {
	if e.Kind == cache.LeaseHeld {
		t.parent.Tell(message{Event: "locked", At: time.Now()})
	}
}

// finish notes a part as done, unless a later attempt has noted one: its fence is larger.
var finish = redis.NewScript(`
if tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'parts', ARGV[2])
return 1`)

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
		Observer:    tongue{parent},
	})
	if err != nil {
		return err
	}
	defer func() { _ = worker.Close() }()
	report, err := worker.Do(context.Background(), "job", func(ctx context.Context, a *lock.Attempt) error {
		parent.Tell(message{Event: "acquired", Attempt: a.Number, At: time.Now(), Text: fmt.Sprintf("previous: %v", a.Previous)})
		err := goOn(ctx, parent, client, a)
		end := message{Event: "done", Attempt: a.Number, At: time.Now()}
		if err != nil {
			end.Event, end.Text = "error", err.Error()
		}
		parent.Tell(end)
		return err
	})
	end := message{Event: "ended", Attempt: report.Attempts, At: time.Now(), Text: fmt.Sprintf("done %v, by another %v", report.Done, report.ByOther)}
	if gaveUp := (*lock.GaveUpError)(nil); errors.As(err, &gaveUp) {
		end.Event, end.Text = "gave up", err.Error()
	} else if err != nil {
		end.Text = err.Error()
	}
	parent.Tell(end)
	return nil
}

// goOn does the parts that are not done yet. The last attempt tries a part again.
func goOn(ctx context.Context, parent *spawn.Parent, client *redis.Client, a *lock.Attempt) error {
	done, err := client.HGet(ctx, "progress", "parts").Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	tries := 1
	if a.Last {
		tries = 2
	}
	fails := 1 - math.Pow(chance, 1.0/parts) // the chance of a part
	for part := done + 1; part <= parts; part++ {
		select {
		case <-time.After(30 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if rand.Float64() < math.Pow(fails, float64(tries)) {
			return fmt.Errorf("part %d failed", part)
		}
		noted, err := finish.Run(ctx, client, []string{"progress"}, a.Lock.Fence(), part).Int()
		if err != nil {
			return err
		}
		if noted == 0 {
			return lock.ErrLost
		}
		parent.Tell(message{Event: "part", Attempt: a.Number, Part: part, At: time.Now()})
	}
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

// A fleet is the workers and their messages.
type fleet struct {
	addr     string
	quiet    bool
	maxKills int

	mu      sync.Mutex
	chosen  int // workers to be killed, so far
	spans   []*span
	at      map[*spawn.Process]*span // attempts that run
	outcome outcome
	victims chan *spawn.Process // workers in the middle of an attempt
	ended   sync.WaitGroup
}

func run(procs int, kill, quiet bool) (outcome, error) {
	server, err := redistest.StartStandalone(context.Background(), redistest.StandaloneConfig{})
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = server.Stop() }()
	f := &fleet{addr: server.Addr(), quiet: quiet, at: map[*spawn.Process]*span{}, victims: make(chan *spawn.Process, maxKills)}
	if kill {
		f.maxKills = maxKills
	}
	for range procs {
		if err := f.start(); err != nil {
			return outcome{}, err
		}
	}
	done := make(chan struct{})
	go func() { f.ended.Wait(); close(done) }()
	for {
		select {
		case p := <-f.victims:
			if err := f.kill(p); err != nil {
				return outcome{}, err
			}
		case <-done:
			return f.sum(), nil
		case <-time.After(time.Minute):
			return outcome{}, errors.New("the job has not ended after a minute")
		}
	}
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

// maxKills leaves attempts that can come to an end.
const maxKills = 2

func (f *fleet) take(p *spawn.Process, m *message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.quiet {
		log.Printf("%d %s attempt %d part %d %s", p.PID(), m.Event, m.Attempt, m.Part, m.Text)
	}
	switch m.Event {
	case "acquired":
		f.outcome.Attempts = max(f.outcome.Attempts, m.Attempt)
		s := &span{from: m.At, to: time.Now().Add(time.Hour)}
		f.spans, f.at[p] = append(f.spans, s), s
	case "part":
		// A worker is killed in the first half of the job, far from its end.
		if f.chosen < f.maxKills && m.Part > 2*f.chosen && m.Part <= parts/2 {
			f.chosen++
			f.victims <- p
		}
	case "done":
		f.outcome.Done++
		f.at[p].to = m.At
	case "error":
		f.at[p].to = m.At
	}
}

// kill ends a worker, and starts another.
func (f *fleet) kill(p *spawn.Process) error {
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
