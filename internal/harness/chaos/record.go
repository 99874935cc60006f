package chaos

import "sync"

// A recorder makes a history of the children's reports and the nemesis's faults.
type recorder struct {
	mu      sync.Mutex
	history History
	fetches map[source]int // index in history.Fetches
	changes map[source]int // index in history.Changes
	lives   map[int]*Life
	odd     map[string]int // errors of no known kind
	told    func(Event)    // hears of a store's events
}

func newRecorder(told func(Event)) *recorder {
	return &recorder{
		told:    told,
		fetches: map[source]int{}, changes: map[source]int{}, lives: map[int]*Life{}, odd: map[string]int{},
	}
}

// add takes in a report of a process.
func (r *recorder) add(proc int, rep *report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &r.history
	switch {
	case rep.Get != nil:
		rep.Get.Proc = proc
		h.Gets = append(h.Gets, *rep.Get)
	case rep.Overdue != nil:
		rep.Overdue.Proc = proc
		h.Gets = append(h.Gets, *rep.Overdue)
	case rep.Begin != nil:
		rep.Begin.Proc = proc
		r.fetches[source{proc, rep.Begin.Seq}] = len(h.Fetches)
		h.Fetches = append(h.Fetches, *rep.Begin)
	case rep.End != nil:
		if i, ok := r.fetches[source{proc, rep.End.Seq}]; ok {
			h.Fetches[i].End, h.Fetches[i].Err = rep.End.End, rep.End.Err
			delete(r.fetches, source{proc, rep.End.Seq})
		}
	case rep.Try != nil:
		rep.Try.Proc = proc
		r.changes[source{proc, rep.Try.Seq}] = len(h.Changes)
		h.Changes = append(h.Changes, *rep.Try)
	case rep.Change != nil:
		if i, ok := r.changes[source{proc, rep.Change.Seq}]; ok {
			h.Changes[i].End, h.Changes[i].Err = rep.Change.End, rep.Change.Err
			delete(r.changes, source{proc, rep.Change.Seq})
		}
	case rep.Event != nil:
		rep.Event.Proc = proc
		h.Events = append(h.Events, *rep.Event)
		if rep.Event.Node != "" {
			r.told(*rep.Event)
		}
	case rep.Late != nil:
		rep.Late.Proc = proc
		h.Pauses = append(h.Pauses, *rep.Late)
	case rep.Odd != "":
		r.odd[rep.Odd]++
	}
}

func (r *recorder) life(proc int) *Life {
	l := r.lives[proc]
	if l == nil {
		l = &Life{Proc: proc}
		r.lives[proc] = l
	}
	return l
}

// idle notes the resources of an idle process; the first note is before the load.
func (r *recorder) idle(proc int, i *Idle) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.life(proc); l.Before == nil {
		l.Before = i
	} else {
		l.After = i
	}
}

func (r *recorder) ended(proc int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.life(proc); l.End == 0 {
		l.End = now()
	}
}

func (r *recorder) calmUntil(s Stamp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.CalmUntil = s
}

func (r *recorder) failover() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Failovers = append(r.history.Failovers, now())
}

func (r *recorder) fault(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Faults = append(r.history.Faults, f)
}

func (r *recorder) frozen(proc int, from, to Stamp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Pauses = append(r.history.Pauses, Pause{Proc: proc, From: from, To: to, Frozen: true})
}

// counts is for the progress.
func (r *recorder) counts() (gets, fetches int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.history.Gets), len(r.history.Fetches)
}

// finish returns the history. It leaves out how a pause of the nemesis looked
// from inside.
func (r *recorder) finish() *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.history
	var frozen, pauses []Pause
	for _, p := range h.Pauses {
		if p.Frozen {
			frozen = append(frozen, p)
		}
	}
	for _, p := range h.Pauses {
		if p.Frozen || !covered(p, frozen) {
			pauses = append(pauses, p)
		}
	}
	h.Pauses = pauses
	for _, l := range r.lives {
		h.Lives = append(h.Lives, *l)
	}
	return &h
}

func covered(p Pause, frozen []Pause) bool {
	for _, f := range frozen {
		if f.Proc == p.Proc && p.From < f.To && p.To > f.From {
			return true
		}
	}
	return false
}
