package cache

import "sync"

// homes knows which node's subscriber serves each watch. A slot may move, and
// its watches with it.
type homes struct {
	mu    sync.Mutex // taken before a subscriber's
	where map[*Watch]*subscriber
}

// Watch implements [Store].
func (s *Redis) Watch(key string) *Watch {
	name := s.keys.names(key).wake
	var w *Watch
	w = NewWatch(func() {
		s.homes.mu.Lock()
		defer s.homes.mu.Unlock()
		if sub := s.homes.where[w]; sub != nil {
			sub.remove(name, w)
			delete(s.homes.where, w)
		}
	})
	n, err := s.topo.node(name)
	if err != nil {
		return w // nothing will arrive: the caller polls
	}
	s.homes.mu.Lock()
	defer s.homes.mu.Unlock()
	if s.homes.where == nil {
		s.homes.where = map[*Watch]*subscriber{}
	}
	s.homes.where[w] = n.sub
	n.sub.add(name, w)
	return w
}

// rehome looks again which node serves each channel of u, and subscribes there:
// its slot may have moved, or its master may have died.
func (s *Redis) rehome(u *subscriber) {
	s.topo.refresh()
	s.homes.mu.Lock()
	defer s.homes.mu.Unlock()
	for name, watches := range u.watched() {
		n, err := s.topo.node(name)
		if err != nil || n.sub == u {
			continue
		}
		for _, w := range watches {
			u.remove(name, w)
			n.sub.add(name, w)
			s.homes.where[w] = n.sub
		}
	}
	u.changed()
}

// watched lists the channels somebody waits on, and who.
func (u *subscriber) watched() map[string][]*Watch {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make(map[string][]*Watch, len(u.channels))
	for name, ch := range u.channels {
		for w := range ch.watches {
			all[name] = append(all[name], w)
		}
	}
	return all
}

// Follow implements [Store].
func (s *Redis) Follow(forget func(Invalidation)) *Feed {
	var f *Feed
	f = NewFeed(forget, func() { s.feeds.remove(f) })
	if s.feeds.add(f) {
		for _, n := range s.topo.all() {
			n.sub.changed()
		}
	}
	return f
}

// checkFeeds puts the feeds up if every node's invalidations are heard.
func (s *Redis) checkFeeds() {
	reasons := s.feeds.reasons()
	for _, n := range s.topo.all() {
		if !n.sub.hears.Load() {
			return
		}
	}
	s.feeds.up(reasons)
}
