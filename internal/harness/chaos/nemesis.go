package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A fault breaks something, holds that for a while, and repairs it.
type fault struct {
	name string
	what string
	on   []string // topologies; nil: all
	do   func(*nemesis, context.Context) (detail string, err error)
}

func (f *fault) fits(topology string) bool { return f.on == nil || slices.Contains(f.on, topology) }

var faults = []fault{
	{name: "kill", what: "SIGKILL a process and start another in its place", do: (*nemesis).kill},
	{name: "shutdown", what: "close a process in order and start another in its place", do: (*nemesis).shutdown},
	{name: "freeze", what: "SIGSTOP a process for longer than its leases", do: (*nemesis).freeze},
	{name: "cut", what: "close a process's connections to Redis and refuse new ones", do: (*nemesis).cut},
	{name: "blackhole", what: "swallow all that a process and Redis send each other", do: (*nemesis).blackhole},
	{name: "slow", what: "200 to 400 ms longer from a process to Redis and back", do: (*nemesis).slow},
	{name: "truncate", what: "close a process's connections in the middle of replies", do: (*nemesis).truncate},
	{name: "redis_pause", what: "SIGSTOP a master, for less than a failover takes", do: (*nemesis).pauseServer},
	{name: "restart", what: "restart a master, or kill and start it, with its data", do: (*nemesis).restart},
	{name: "restart_empty", what: "restart a master without its data", do: (*nemesis).restartEmpty},
	{name: "script_flush", what: "SCRIPT FLUSH, several times", do: (*nemesis).scriptFlush},
	{name: "kill_pubsub", what: "CLIENT KILL TYPE pubsub, several times", do: (*nemesis).killPubSub},
	{name: "full_noeviction", what: "fill Redis to maxmemory under noeviction", do: (*nemesis).fullNoEviction},
	{name: "full_lru", what: "go on filling Redis at maxmemory under allkeys-lru", do: (*nemesis).fullLRU},
	{name: "failover", what: "SENTINEL FAILOVER", on: []string{Sentinel}, do: (*nemesis).failover},
	{name: "master_kill", what: "kill a master, wait for the failover, start it again", on: []string{Sentinel, Cluster}, do: (*nemesis).killMaster},
	{name: "move_slots", what: "move slots that are in use, and back", on: []string{Cluster}, do: (*nemesis).moveSlots},
}

// Faults returns the names of the faults there are on a topology, each with a
// line of text.
func Faults(topology string) (names, texts []string) {
	for _, f := range faults {
		if f.fits(topology) {
			names, texts = append(names, f.name), append(texts, f.what)
		}
	}
	return names, texts
}

// A nemesis carries out one fault after the other.
type nemesis struct {
	*runner
	rng *rand.Rand
}

// recoveryTimeout bounds a fault and the recovery from it. A longer one is
// a failure of the tool, or of Redis, not of the library: the run ends.
const recoveryTimeout = 90 * time.Second

// run carries out faults until the context ends. One that has begun is repaired.
func (n *nemesis) run(ctx context.Context, selected []fault) error {
	var deck []fault
	for wait(ctx, n.quiet()) {
		if len(deck) == 0 {
			deck = slices.Clone(selected)
			n.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		f := deck[0]
		deck = deck[1:]
		if err := n.carryOut(&f); err != nil {
			return fmt.Errorf("chaos: fault %s: %w", f.name, err)
		}
	}
	return nil
}

// quiet is the pause between a recovery and the next fault.
func (n *nemesis) quiet() time.Duration { return time.Second + upTo(n.rng, time.Second) }

func (n *nemesis) carryOut(f *fault) error {
	// A fault is brought to its end even if the run's time is over, but not when
	// the run is interrupted.
	ctx, cancel := context.WithTimeout(n.life, recoveryTimeout)
	defer cancel()
	done := Fault{Name: f.name, Start: now()}
	var err error
	done.Detail, err = f.do(n, ctx)
	done.Repaired = now()
	if err == nil {
		err = n.topo.recovered(ctx)
	}
	wait(ctx, 500*time.Millisecond) // clients reconnect, breakers probe
	done.Until = now()
	n.rec.fault(done)
	gets, fetches := n.rec.counts()
	n.progress("%-16s %5.1f s, %4.1f s to recover: %s (%d calls, %d fetches so far)", f.name,
		done.Repaired.Sub(done.Start).Seconds(), done.Until.Sub(done.Repaired).Seconds(), done.Detail, gets, fetches)
	return err
}

// hold waits for one to three seconds.
func (n *nemesis) hold(ctx context.Context) { wait(ctx, time.Second+upTo(n.rng, 2*time.Second)) }

// place draws one of the processes.
func (n *nemesis) place() *place { return n.places[n.rng.IntN(len(n.places))] }

func (n *nemesis) kill(ctx context.Context) (string, error) {
	p := n.place()
	number := p.proc.number
	if err := p.proc.Kill(); err != nil {
		return "", err
	}
	wait(ctx, upTo(n.rng, time.Second))
	err := n.populate(ctx, p)
	return fmt.Sprintf("process %d, replaced by %d", number, p.proc.number), err
}

func (n *nemesis) shutdown(ctx context.Context) (string, error) {
	p := n.place()
	number := p.proc.number
	if err := p.proc.close(ctx); err != nil {
		return "", err
	}
	err := n.populate(ctx, p)
	return fmt.Sprintf("process %d, replaced by %d", number, p.proc.number), err
}

func (n *nemesis) freeze(ctx context.Context) (string, error) {
	p := n.place().proc
	d := leaseTTL*3/2 + upTo(n.rng, 3*leaseTTL)
	return fmt.Sprintf("process %d for %v", p.number, d.Round(time.Millisecond)), p.freeze(ctx, d)
}

// links draws a process and all of its links, or one of them.
func (n *nemesis) links() (text string, links []*link) {
	p := n.place()
	if len(p.links) > 1 && n.rng.IntN(3) == 0 {
		l := p.links[n.rng.IntN(len(p.links))]
		return fmt.Sprintf("process %d from %s", p.proc.number, l.addr), []*link{l}
	}
	return fmt.Sprintf("process %d", p.proc.number), p.links
}

func (n *nemesis) cut(ctx context.Context) (string, error) {
	text, links := n.links()
	for _, l := range links {
		l.Cut()
	}
	n.hold(ctx)
	return text, restore(links)
}

func (n *nemesis) blackhole(ctx context.Context) (string, error) {
	text, links := n.links()
	var errs []error
	for _, l := range links {
		errs = append(errs, l.Blackhole())
	}
	n.hold(ctx)
	return text, errors.Join(append(errs, restore(links))...)
}

// slow is on both sides of the default RedisTimeout.
func (n *nemesis) slow(ctx context.Context) (string, error) {
	text, links := n.links()
	d := 100 * time.Millisecond << n.rng.IntN(2)
	for _, l := range links {
		l.Delay(d)
	}
	n.hold(ctx)
	return fmt.Sprintf("%s, %v more each way", text, d), restore(links)
}

func (n *nemesis) truncate(ctx context.Context) (string, error) {
	text, links := n.links()
	times := 10 + n.rng.IntN(30)
	for range times {
		for _, l := range links {
			l.TruncateNext(n.rng.IntN(60))
		}
		wait(ctx, 20*time.Millisecond+upTo(n.rng, 80*time.Millisecond))
	}
	return fmt.Sprintf("%s, up to %d times", text, times*len(links)), restore(links)
}

func restore(links []*link) error {
	var errs []error
	for _, l := range links {
		errs = append(errs, l.Restore())
	}
	return errors.Join(errs...)
}
