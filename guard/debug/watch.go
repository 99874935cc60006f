package debug

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/measure"
)

// Charts show samples of the counters, so far apart.
const (
	sampleEvery = 5 * time.Second
	samples     = 60
)

// watched is the page's own record of the guards of one name. Page.mu guards it.
type watched struct {
	history []totals // oldest first, at most samples+1
	stopped map[string]stop
	unseen  int // stops of keys that the page did not keep
	errors  []failure
}

// totals are counts of calls since the start of the process.
type totals struct{ hits, stale, misses, failed uint64 }

// A stop is a pause or a quarantine that this process has heard of.
type stop struct {
	kind, why string
	ends      time.Time
}

type failure struct {
	key, text string
	at        time.Time
}

// maxErrors are kept for each guard. A fleet in trouble has new ones all the time.
const maxErrors = 5

// Attach implements [cache.Attacher]. The charts are sampled by a timer while a guard is
// attached.
func (p *Page) Attach(name string, component any) (detach func()) {
	end := p.registry.Attach(name, component)
	if _, ok := component.(measure.Guard); !ok {
		return end
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchLocked(name)
	p.alive++
	if p.timer == nil && !p.closed {
		p.timer = time.AfterFunc(sampleEvery, p.sample)
	}
	return func() {
		end()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.alive--; p.alive == 0 && p.timer != nil {
			p.timer.Stop()
			p.timer = nil
		}
	}
}

func (p *Page) watchLocked(name string) *watched {
	w := p.guards[name]
	if w == nil {
		w = &watched{stopped: map[string]stop{}}
		p.guards[name] = w
	}
	return w
}

// sample takes one sample of each guard.
func (p *Page) sample() {
	all := p.registry.Guards()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.alive == 0 {
		return
	}
	for i := range all {
		w := p.watchLocked(all[i].Name)
		w.history = append(w.history, totalsOf(&all[i]))
		if len(w.history) > samples+1 {
			w.history = slices.Delete(w.history, 0, 1)
		}
	}
	p.timer.Reset(sampleEvery) // a new one beside that of a later Attach would sample twice as often
}

func totalsOf(g *measure.Named) totals {
	s := &g.Stats
	t := totals{hits: s.NearHits + s.StoreHits, stale: s.Stale + s.ReserveHits, misses: s.Fetched + s.Waited}
	for _, c := range measure.Sources(s) {
		if c.Error != "" {
			t.failed += c.N
		}
	}
	return t
}

// Observe implements [cache.Observer].
func (p *Page) Observe(ev cache.Event) {
	switch ev.Kind {
	case cache.KeyPaused, cache.KeyQuarantined, cache.FetchFailed, cache.KeyChanged:
		p.note(&ev)
	}
}

func (p *Page) note(ev *cache.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.watchLocked(ev.Guard)
	switch ev.Kind {
	case cache.KeyPaused:
		w.stopLocked(ev.Key, stop{"paused", text(ev.Err), time.Now().Add(ev.Duration)}, p.opts.MaxKeys)
	case cache.KeyQuarantined:
		w.stopLocked(ev.Key, stop{"quarantined", "its holders keep dying", time.Now().Add(ev.Duration)}, p.opts.MaxKeys)
	case cache.FetchFailed:
		if len(w.errors) == maxErrors {
			w.errors = slices.Delete(w.errors, 0, 1)
		}
		w.errors = append(w.errors, failure{ev.Key, text(ev.Err), time.Now()})
	case cache.KeyChanged:
		if ev.Err == nil && (ev.Operation == "reset" || ev.Operation == "set") {
			delete(w.stopped, ev.Key)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// stopLocked remembers a key that must not be fetched. Ended ones make room.
func (w *watched) stopLocked(key string, s stop, max int) {
	if _, known := w.stopped[key]; !known && len(w.stopped) >= max {
		w.tidyLocked()
		if len(w.stopped) >= max {
			w.unseen++
			return
		}
	}
	w.stopped[key] = s
}

func (w *watched) tidyLocked() {
	now := time.Now()
	maps.DeleteFunc(w.stopped, func(_ string, s stop) bool { return !s.ends.After(now) })
	if len(w.stopped) == 0 {
		w.unseen = 0
	}
}

// forget drops a key that was reset.
func (p *Page) forget(name, key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.guards[name]; w != nil {
		delete(w.stopped, key)
	}
}

// stopsLocked lists the stopped keys, the longest first.
func (w *watched) stopsLocked(hide bool) (all []Stopped) {
	w.tidyLocked()
	now := time.Now()
	for key, s := range w.stopped {
		one := Stopped{Key: shown(key), Kind: s.kind, Why: clean(s.why), Left: s.ends.Sub(now).Seconds(), raw: key}
		if hide || key == "" {
			one.Key, one.Why, one.raw = "", "", ""
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Stopped) int { return cmp.Or(cmp.Compare(b.Left, a.Left), cmp.Compare(a.Key, b.Key)) })
	return all
}
