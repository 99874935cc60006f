package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A scene is one stampede on one cold key.
type scene struct {
	name   string
	mode   string
	behave behaviour // of the origin
	kill   bool      // the process that fetches first, half-way through its fetch
}

const (
	sceneCold  = "cold"
	sceneCrash = "crash"
	sceneError = "error"
)

var scenes = []scene{
	{name: sceneCold, mode: modeNone, behave: answers},
	{name: sceneCold, mode: modeSingleflight, behave: answers},
	{name: sceneCold, mode: modeGuard, behave: answers},
	{name: sceneCrash, mode: modeGuard, behave: firstHangs, kill: true},
	{name: sceneError, mode: modeGuard, behave: fails},
}

// An outcome holds the events of a scene.
type outcome struct {
	scene
	procs, callers int
	start          time.Time
	fetches        []fetch  // as they reached the origin
	answers        []answer // in the order of time; none from a killed process
	killed         time.Time
	redisCommands  int64
	firstError     string
	notes          []string
}

func (o *outcome) errors() int {
	n := 0
	for _, a := range o.answers {
		if a.Failed {
			n++
		}
	}
	return n
}

const (
	readyWithin = 20 * time.Second
	// startsIn gives each process time to hear of the start.
	startsIn = 150 * time.Millisecond
)

// A stage is a scene under way.
type stage struct {
	scene
	c        config
	origin   *origin
	troupe   *troupe
	progress *progress

	outcome  *outcome
	done     map[*member]bool
	answered map[*member]int
}

// play plays a scene with processes of its own. When it returns, they have
// ended.
func play(ctx context.Context, sc scene, c config, redisURL string, p *progress) (*outcome, error) {
	// Long enough for busy machines: it only ends a hang.
	limit := 30*time.Second + 4*c.fetch
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin+limit+5*time.Second,
		errors.New("the scene took too long"))
	defer cancel()
	origin, err := startOrigin(c.origin, c.fetch, sc.behave)
	if err != nil {
		return nil, err
	}
	defer origin.close()
	troupe, err := hire(ctx, c.procs)
	if err != nil {
		return nil, err
	}
	defer troupe.dismiss()
	s := &stage{
		scene: sc, c: c, origin: origin, troupe: troupe, progress: p,
		outcome:  &outcome{scene: sc, procs: c.procs, callers: c.callers},
		done:     map[*member]bool{},
		answered: map[*member]int{},
	}
	namespace := "stampede-demo:" + rand.Text()[:10]
	troupe.broadcast(func(m *member) message {
		return message{Type: msgJob, Job: &job{
			Proc: m.index, Mode: sc.mode, Callers: c.callers, Redis: redisURL,
			Origin: origin.url, Namespace: namespace, Timeout: limit,
		}}
	})
	if err := s.awaitReady(ctx); err != nil {
		return nil, err
	}
	s.outcome.start = time.Now().Add(startsIn)
	troupe.broadcast(func(*member) message { return message{Type: msgGo, At: s.outcome.start.UnixNano()} })
	if err := s.awaitResults(ctx); err != nil {
		return nil, err
	}
	return s.finish()
}

func (s *stage) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not all processes were ready within %v", readyWithin))
	defer cancel()
	for ready := 0; ready < len(s.troupe.members); {
		select {
		case h := <-s.troupe.heard:
			if err := check(h); err != nil {
				return err
			}
			if h.msg.Type == msgReady {
				ready++
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// awaitResults waits for the callers of all processes. It kills a process if the scene
// plans that.
func (s *stage) awaitResults(ctx context.Context) error {
	var victim *member
	var execute <-chan time.Time
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !s.complete() {
		select {
		case h := <-s.troupe.heard:
			if err := s.take(h); err != nil {
				return err
			}
		case first := <-s.origin.arrived:
			if s.kill {
				victim = s.troupe.members[first.proc]
				execute = time.After(s.c.fetch / 2)
			}
		case <-execute:
			var err error
			if s.outcome.killed, err = victim.kill(); err != nil {
				return err
			}
		case <-tick.C:
			s.show()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.show()
	return nil
}

func (s *stage) show() {
	answered := 0
	for _, n := range s.answered {
		answered += n
	}
	s.progress.update(time.Since(s.outcome.start), s.origin.count(), answered)
}

func (s *stage) complete() bool {
	for _, m := range s.troupe.members {
		if !s.done[m] && !m.killed {
			return false
		}
	}
	return true
}

func (s *stage) take(h heard) error {
	if err := check(h); err != nil {
		return err
	}
	o := s.outcome
	switch h.msg.Type {
	case msgProgress:
		s.answered[h.from] = h.msg.Answered
	case msgResult:
		r := h.msg.Result
		s.done[h.from] = true
		s.answered[h.from] = len(r.Answers)
		o.answers = append(o.answers, r.Answers...)
		o.redisCommands += r.RedisCommands
		o.firstError = cmp.Or(o.firstError, r.FirstError)
		o.notes = append(o.notes, r.Notes...)
	}
	return nil
}

func (s *stage) finish() (*outcome, error) {
	o := s.outcome
	o.fetches = s.origin.record()
	slices.SortFunc(o.answers, func(a, b answer) int { return cmp.Compare(a.After, b.After) })
	if s.kill {
		if o.killed.IsZero() {
			return nil, errors.New("no process fetched, so none could be killed")
		}
		if _, ok := o.takeover(); !ok {
			return nil, errors.New("no process took over from the one that was killed")
		}
	}
	return o, nil
}
