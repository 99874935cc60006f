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
	again bool  // the votes were split, or a server abstained: the lock may be free
	left  time.Duration
	job   *jobAnswer
}

// A round is one attempt to get a majority for an ID.
type round struct {
	l     *Locker
	terms *terms
	req   Request
	sent  time.Time

	mu      sync.Mutex // guards memory only
	votes   []Vote
	grants  []Grant
	settled bool
	over    bool          // the ID is given up or released: a late vote is released
	decided chan struct{} // nil with a single backend

	lone struct { // the memory of a single backend's vote
		votes  [1]Vote
		grants [1]Grant
	}
}

// ask makes one attempt: it sends a new ID to all backends, and returns when a majority has
// granted it or can't any more.
func ask(ctx context.Context, l *Locker, name string, suspect ID, t *terms) (*Lock, *refusal) {
	n := len(l.panel.backends)
	r := &round{
		l: l, terms: t, sent: time.Now(),
		req: Request{Name: name, ID: l.newID(), TTL: l.opts.TTL, Holders: l.opts.Holders, Suspect: suspect, Vote: n > 1, job: t.job},
	}
	if r.votes, r.grants = r.lone.votes[:], r.lone.grants[:]; n > 1 {
		r.votes, r.grants, r.decided = make([]Vote, n), make([]Grant, n), make(chan struct{})
	}
	for i := range r.votes {
		r.votes[i].Backend = l.panel.names[i]
	}
	if n == 1 {
		r.take(0, r.vote(ctx, 0))
		return r.conclude(ctx)
	}
	for i := range n {
		if !l.spawn(func() { r.take(i, r.vote(context.WithoutCancel(ctx), i)) }) {
			r.giveUp()
			return nil, &refusal{err: ErrClosed}
		}
	}
	select {
	case <-r.decided:
	case <-ctx.Done():
		r.giveUp()
		return nil, &refusal{err: context.Cause(ctx)}
	}
	return r.conclude(ctx)
}

// vote asks one backend.
func (r *round) vote(ctx context.Context, i int) error {
	ctx, cancel := r.l.panel.bounded(ctx)
	defer cancel()
	g, err := r.l.panel.backends[i].Acquire(ctx, r.req)
	r.mu.Lock()
	r.grants[i] = g
	r.mu.Unlock()
	return err
}

// take counts a vote. One that comes too late is given back; so is one that may have been for
// the ID, as no answer came.
func (r *round) take(i int, err error) {
	if r.count(i, err) {
		r.l.strays.add(r.req.ID, r.req.TTL)
		r.l.panel.releaseAt(i, r.hold())
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
	if r.decided != nil && !r.settled && (yes >= r.l.panel.quorum || yes+pending < r.l.panel.quorum) {
		r.settled = true
		close(r.decided)
	}
	return r.over && (v.State == VoteYes || v.State == VoteError)
}

func (r *round) hold() Hold {
	h := Hold{Name: r.req.Name, ID: r.req.ID, Holders: r.req.Holders}
	if r.req.job != nil {
		h.job = &jobOutcome{jobTerms: *r.req.job}
	}
	return h
}

// releaseSoon gives an ID back on one backend, in the background unless the Locker is closed.
func (r *round) releaseSoon(i int, h Hold) {
	if !r.l.spawn(func() { r.l.panel.releaseAt(i, h) }) {
		r.l.panel.releaseAt(i, h)
	}
}

// answers copies the votes so far. A single backend's does not change any more.
func (r *round) answers() ([]Vote, []Grant) {
	if r.decided == nil {
		return r.votes, r.grants
	}
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

// giveUp gives back the votes for the ID, and those that may have been for it.
func (r *round) giveUp() {
	r.finish()
	votes, _ := r.answers()
	for i, v := range votes {
		if v.State == VoteError {
			r.l.strays.add(r.req.ID, r.req.TTL)
		}
		if v.State == VoteYes || v.State == VoteError {
			r.releaseSoon(i, r.hold())
		}
	}
}

// strays are IDs that may be granted, as their Acquire was not answered, and that no caller
// holds; until when.
type strays struct {
	mu  sync.Mutex // guards memory only
	all map[ID]time.Time
}

// maxStrays bounds the memory of an outage. The lock of an ID that is forgotten ends at its TTL.
const maxStrays = 1000

func (s *strays) add(id ID, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for old, until := range s.all {
		if now.After(until) || len(s.all) >= maxStrays {
			delete(s.all, old)
		}
	}
	s.all[id] = now.Add(2 * ttl)
}

func (s *strays) has(id ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.all[id]
	return ok
}

// conclude makes a lock of a majority, or says why there is none.
func (r *round) conclude(ctx context.Context) (*Lock, *refusal) {
	votes, grants := r.answers()
	if err := r.sameServer(grants); err != nil {
		r.giveUp()
		return nil, &refusal{err: err}
	}
	if count(votes, VoteYes) < r.l.panel.quorum {
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
			return fmt.Errorf("%w: backends %s and %s", ErrSameServer, r.l.panel.names[j], r.l.panel.names[i])
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
			if l.strays.has(v.Holder) {
				why.again = true
				h := r.hold()
				h.ID = v.Holder
				r.releaseSoon(i, h)
			}
		}
		why.left = max(why.left, v.Left)
	}
	if errs := count(votes, VoteError); errs > len(votes)-l.panel.quorum {
		why.err = l.panel.noQuorum(r.req.Name, votes)
		return why
	}
	held := &HeldError{Name: r.req.Name, Left: why.left, Votes: votes}
	named := map[ID]int{}
	for i := range votes {
		if votes[i].State == VoteNo {
			if named[votes[i].Holder]++; named[votes[i].Holder] >= l.panel.quorum {
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
		if votes, yes := l.panel.extend(ctx, h); yes < l.panel.quorum {
			return nil, l.panel.noQuorum(r.req.Name, votes)
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
