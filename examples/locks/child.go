package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/harness/spawn"
	"github.com/stampedeguard/stampede/lock"
)

// An order tells a child its task.
type order struct {
	Technique string
	Addrs     []string
	ID        string
	Rounds    int
	Hold      time.Duration
	Believes  time.Duration // if above zero: the holder stops work after this, and unlocks after Hold
	Clock     time.Duration // how far this process's clock is off
	Stop      bool          // between its first two commands, or with the lock if it sends one
	Wait      time.Duration // before it begins
}

// A message is from a child: In and Out of a time in which it worked under the lock.
type message struct {
	ID      string // of the order
	In, Out time.Time
	Begins  bool   // it has just begun to work
	Stopped bool   // it waits to be killed
	Done    bool   // it has done all rounds
	Sent    int64  // Done: commands that it has sent
	Err     string // it can't go on
}

// contend is a child: it takes the lock, works, and gives it back.
func contend(parent *spawn.Parent) error {
	var o order
	if err := parent.Hear(&o); err != nil {
		return err
	}
	c := &contender{parent: parent, o: &o}
	if err := c.run(); err != nil {
		parent.Tell(message{Err: err.Error()})
	} else {
		parent.Tell(message{Done: true, Sent: c.sent.Total()})
	}
	return parent.Hear(&o) // to its end
}

type contender struct {
	parent *spawn.Parent
	o      *order
	sent   redistest.Counter
}

func (c *contender) run() error {
	var clients []*redis.Client
	for _, addr := range c.o.Addrs {
		client := redis.NewClient(&redis.Options{Addr: addr, DialTimeout: ttl})
		if err := client.Ping(context.Background()).Err(); err != nil {
			return err
		}
		client.AddHook(&c.sent)
		clients = append(clients, client)
	}
	time.Sleep(c.o.Wait)
	if c.o.Technique == "stampede" {
		return c.ours(clients)
	}
	for _, t := range techniques {
		if t.name == c.o.Technique {
			return c.theirs(&t, clients[0])
		}
	}
	return fmt.Errorf("there is no technique %q", c.o.Technique)
}

func (c *contender) stop() {
	c.parent.Tell(message{Stopped: true})
	select {}
}

// retry is how soon a technique asks again.
const retry = 5 * time.Millisecond

func (c *contender) theirs(tech *technique, client *redis.Client) error {
	t := &try{
		ctx: context.Background(), rdb: client, id: c.o.ID,
		clock: func() time.Time { return time.Now().Add(c.o.Clock) },
		pause: func() {
			if c.o.Stop {
				c.stop()
			}
			time.Sleep(time.Millisecond)
		},
	}
	for range c.o.Rounds {
		release, err := tech.take(t)
		for ; release == nil || err != nil; release, err = tech.take(t) {
			time.Sleep(retry)
		}
		c.work(context.Background())
		_ = release() // the server may have been restarted
	}
	return nil
}

func (c *contender) ours(clients []*redis.Client) error {
	l, err := stampede(clients)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	c.sent.Reset() // of the commands that open a store
	for range c.o.Rounds {
		err := l.Do(context.Background(), name, func(ctx context.Context, _ *lock.Lock) error {
			c.work(ctx)
			return nil
		})
		if err != nil && !errors.Is(err, lock.ErrLost) { // it has stopped work in time
			return err
		}
	}
	return nil
}

// work tells when it began and ended: at the latest when ctx does.
func (c *contender) work(ctx context.Context) {
	m := message{ID: c.o.ID, In: time.Now()}
	c.parent.Tell(message{Begins: true})
	if c.o.Stop {
		c.stop()
	}
	hold := c.o.Hold
	if c.o.Believes > 0 {
		hold = c.o.Believes
	}
	select {
	case <-time.After(hold):
	case <-ctx.Done():
	}
	m.Out = time.Now()
	c.parent.Tell(m)
	time.Sleep(c.o.Hold - hold)
}
