package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// A refusal says why a round granted nothing.
type refusal struct {
	err   error // HeldError if another holder has the lock or no majority was free
	dead  ID    // a holder that looks dead
	again bool  // the votes were split, or a server abstained: nobody may hold the lock
	left  time.Duration
	job   *jobAnswer
}

// A round is one attempt to get a majority for an ID.
type round struct {
	l     *Locker
	terms *terms
	req   Request
	sent  time.Time

	mu      sync.Mutex
	votes   []Vote
	grants  []Grant
	settled bool
	over    bool // the ID is given up or released: a late vote is released
	decided chan struct{}
}

// ask makes one attempt: it sends a new ID to all backends, and returns when a majority has
// granted it or can't any more.
func (l *Locker) ask(ctx context.Context, name string, suspect ID, t *terms) (*Lock, *refusal) {
	r := &round{
		l: l, terms: t,
		req:  Request{Name: name, ID: l.newID(), TTL: l.opts.TTL, Holders: l.opts.Holders, Suspect: suspect, Vote: len(l.backends) > 1, job: t.job},
		sent: time.Now(), votes: make([]Vote, len(l.backends)), grants: make([]Grant, len(l.backends)),
	}
	for i := range r.votes {
		r.votes[i].Backend = l.names[i]
	}
	if len(l.backends) == 1 {
		r.take(0, r.vote(ctx, 0))
	} else {
		r.decided = make(chan struct{})
		for i := range l.backends {
			if !l.spawn(func() { r.take(i, r.vote(context.WithoutCancel(ctx), i)) }) {
				return nil, &refusal{err: ErrClosed}
			}
		}
		select {
		case <-r.decided:
		case <-ctx.Done():
			r.giveUp()
			return nil, &refusal{err: context.Cause(ctx)}
		}
	}
	return r.conclude(ctx)
}

// vote asks one backend.
func (r *round) vote(ctx context.Context, i int) error {
	ctx, cancel := r.l.bounded(ctx)
	defer cancel()
	g, err := r.l.backends[i].Acquire(ctx, r.req)
	r.mu.Lock()
	r.grants[i] = g
	r.mu.Unlock()
	return err
}

// take counts a vote. A vote that comes too late is given back.
func (r *round) take(i int, err error) {
	if r.count(i, err) {
		r.l.releaseAt(i, r.hold())
	}
}

func (r *round) count(i int, err error) (late bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, v := &r.grants[i], &r.votes[i]
	v.Holder, v.Left = g.Holder, g.Left
	switch {
	case err != nil:
		v.State, v.Err = VoteError, err
	case g.OK:
		v.State = VoteYes
	case g.Abstains:
		v.State = VoteAbstain
	default:
		v.State = VoteNo
	}
	yes, pending := count(r.votes, VoteYes), count(r.votes, VotePending)
	if !r.settled && (yes >= r.l.quorum || yes+pending < r.l.quorum) {
		r.settled = true
		if r.decided != nil {
			close(r.decided)
		}
	}
	return r.over && v.State == VoteYes
}

func (r *round) hold() Hold {
	h := Hold{Name: r.req.Name, ID: r.req.ID, Holders: r.req.Holders}
	if r.req.job != nil {
		h.job = &jobOutcome{jobTerms: *r.req.job}
	}
	return h
}

// releaseSoon is releaseAt in the background, unless the Locker is closed.
func (l *Locker) releaseSoon(i int, h Hold) {
	if !l.spawn(func() { l.releaseAt(i, h) }) {
		l.releaseAt(i, h)
	}
}

// releaseAt gives a lock back on one backend, once.
func (l *Locker) releaseAt(i int, h Hold) {
	ctx, cancel := l.bounded(context.Background())
	defer cancel()
	_, _ = l.backends[i].Release(ctx, h)
}

// answers copies the votes so far.
func (r *round) answers() ([]Vote, []Grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.votes), slices.Clone(r.grants)
}

// finish has late votes given back from now on.
func (r *round) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// giveUp gives back what was granted, and what may have been.
func (r *round) giveUp() {
	r.finish()
	l := r.l
	votes, _ := r.answers()
	for i, v := range votes {
		if v.State == VoteError {
			l.strayed(r.req.ID, r.req.TTL)
		}
		if v.State == VoteYes || v.State == VoteError {
			l.releaseSoon(i, r.hold())
		}
	}
}

// strayed notes an ID that may be granted, and that no caller holds.
func (l *Locker) strayed(id ID, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for old, until := range l.stray {
		if now.After(until) {
			delete(l.stray, old)
		}
	}
	l.stray[id] = now.Add(2 * ttl)
}

// isStray reports whether a holder is an ID of this Locker that no caller holds.
func (l *Locker) isStray(id ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.stray[id]
	return ok
}

// conclude makes a lock of a majority, or says why there is none.
func (r *round) conclude(ctx context.Context) (*Lock, *refusal) {
	votes, grants := r.answers()
	if err := r.sameServer(grants); err != nil {
		r.giveUp()
		return nil, &refusal{err: err}
	}
	if count(votes, VoteYes) < r.l.quorum {
		r.giveUp()
		return nil, r.refused(votes, grants)
	}
	k, err := r.grant(ctx, votes, grants)
	if err != nil {
		r.giveUp()
		return nil, &refusal{err: err}
	}
	return k, nil
}

// sameServer finds two votes of one server.
func (r *round) sameServer(grants []Grant) error {
	if len(grants) == 1 {
		return nil
	}
	seen := map[string]int{}
	for i := range grants {
		server := grants[i].Server
		if j, ok := seen[server]; ok && server != "" {
			return fmt.Errorf("%w: backends %s and %s", ErrSameServer, r.l.names[j], r.l.names[i])
		}
		seen[server] = i
	}
	return nil
}

// refused says why there is no majority.
func (r *round) refused(votes []Vote, grants []Grant) *refusal {
	l := r.l
	why := &refusal{job: grants[0].job}
	for i := range votes {
		v := &votes[i]
		if errors.Is(v.Err, ErrForeign) {
			why.err = v.Err
			return why
		}
		if v.State == VoteNo {
			if grants[i].Dead {
				why.dead = v.Holder
			}
			if l.isStray(v.Holder) {
				why.again = true
				h := r.hold()
				h.ID = v.Holder
				l.releaseSoon(i, h)
			}
		}
		why.left = max(why.left, v.Left)
	}
	if errs := count(votes, VoteError); errs > len(votes)-l.quorum {
		why.err = l.noQuorum(r.req.Name, votes)
		return why
	}
	held := &HeldError{Name: r.req.Name, Left: why.left, Votes: votes}
	named := map[ID]int{}
	for i := range votes {
		if votes[i].State == VoteNo {
			if named[votes[i].Holder]++; named[votes[i].Holder] >= l.quorum {
				held.Holder = votes[i].Holder
			}
		}
	}
	if len(votes) == 1 {
		held.Votes = nil
	} else if held.Holder.IsZero() {
		why.again = true
	}
	why.err = held
	return why
}

// grant makes a lock, unless its time is over already. Fences that differ are first raised
// to the largest on a majority: two majorities meet, so the next fence is larger.
func (r *round) grant(ctx context.Context, votes []Vote, grants []Grant) (*Lock, error) {
	l := r.l
	k := &Lock{l: l, name: r.req.Name, id: r.req.ID, round: r, ttl: r.req.TTL, granted: time.Now(), terms: r.req.job}
	differ := false
	first := true
	for i := range grants {
		g := &grants[i]
		if votes[i].State != VoteYes {
			continue
		}
		differ = differ || !first && g.Fence != k.fence
		first = false
		k.fence, k.attempt = max(k.fence, g.Fence), max(k.attempt, g.Attempt)
		k.takenOver = k.takenOver || g.TakenOver
		if g.job != nil {
			k.previous = g.job.job.Cause
		}
	}
	sent := r.sent
	if differ {
		sent = time.Now()
		h := r.hold()
		h.TTL, h.Fence = r.req.TTL, k.fence
		if votes, yes := l.each(ctx, func(ctx context.Context, i int) (bool, error) { return l.backends[i].Extend(ctx, h) }); yes < l.quorum {
			return nil, l.noQuorum(r.req.Name, votes)
		}
	}
	if err := k.begin(ctx, r.terms.bound, sent); err != nil {
		return nil, err
	}
	kind := cache.LeaseGranted
	if k.takenOver {
		kind = cache.LeaseTakenOver
	}
	l.observe(kind, k.name, cache.Event{Token: cache.Token(k.id), Attempt: k.attempt})
	return k, nil
}
