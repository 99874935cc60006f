package redisstore

import (
	"sync"

	"github.com/stampedeguard/stampede/internal/store"
)

// watches let waiters and near caches hear of changes. They know whether Redis sees that
// this process is subscribed.
type watches struct {
	*core
	ledger   *ledger
	feeds    *store.Feeds
	homes    homes
	liveness liveness
}

func newWatches(c *core, ledger *ledger, feeds *store.Feeds) *watches {
	s := &watches{core: c, ledger: ledger, feeds: feeds}
	s.liveness.disabled = c.opts.DisableLiveness
	s.liveness.on.Store(!c.opts.DisableLiveness)
	return s
}

// homes knows which node's subscription serves each watch. A slot may move, and its
// watches with it.
type homes struct {
	mu  sync.Mutex
	all map[*store.Watch]home
}

type home struct {
	channel string
	sub     *subscription
}

// Watch implements [store.Store].
func (s *watches) Watch(key string) *store.Watch {
	channel := string(s.names.names(key).wake)
	var w *store.Watch
	w = store.NewWatch(func() {
		s.homes.mu.Lock()
		defer s.homes.mu.Unlock()
		if h, ok := s.homes.all[w]; ok {
			h.sub.remove(channel, w)
			delete(s.homes.all, w)
		}
	})
	n, err := s.topo.node(channel)
	if err != nil {
		return w // nothing will arrive: the caller polls
	}
	s.homes.mu.Lock()
	defer s.homes.mu.Unlock()
	if s.homes.all == nil {
		s.homes.all = map[*store.Watch]home{}
	}
	s.homes.all[w] = home{channel, n.sub}
	n.sub.add(channel, w)
	return w
}

// rehome looks again which node serves each watch of u, and watches there: its slot may
// have moved, or its master may have died.
func (s *watches) rehome(u *subscription) {
	s.topo.refresh()
	moving := map[*store.Watch]home{}
	s.homes.mu.Lock()
	for w, h := range s.homes.all {
		if h.sub == u {
			moving[w] = h
		}
	}
	s.homes.mu.Unlock() // a cluster counts the watches of its nodes with its own mutex held
	for w, h := range moving {
		n, err := s.topo.node(h.channel)
		if err != nil || n.sub == u {
			continue
		}
		s.homes.mu.Lock()
		if s.homes.all[w] == h { // it is still watched
			u.remove(h.channel, w)
			n.sub.add(h.channel, w)
			s.homes.all[w] = home{h.channel, n.sub}
		}
		s.homes.mu.Unlock()
	}
	u.post(func() {}) // the rest may be subscribed to again
}

// served counts the watches that u serves.
func (s *watches) served(u *subscription) (n int) {
	s.homes.mu.Lock()
	defer s.homes.mu.Unlock()
	for _, h := range s.homes.all {
		if h.sub == u {
			n++
		}
	}
	return n
}

// Follow implements [store.Store].
func (s *watches) Follow(forget func(store.Invalidation)) *store.Feed {
	f, first := s.feeds.Open(forget)
	if first {
		for _, n := range s.topo.all() {
			n.sub.post(func() {}) // it subscribes to the invalidations
		}
	}
	return f
}

// checkFeeds puts the feeds up if every node's invalidations are heard.
func (s *watches) checkFeeds() {
	downs := s.feeds.Downs()
	for _, n := range s.topo.all() {
		if !n.sub.hears.Load() {
			return
		}
	}
	s.feeds.Up(downs)
}
