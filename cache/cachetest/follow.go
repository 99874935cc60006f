package cachetest

import (
	"sync"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// A follower keeps the keys a feed told it to forget.
type follower struct {
	*cache.Feed
	mu   sync.Mutex
	keys map[string]int
	tags map[string]int
}

// follows returns a feed of s that is live.
func (f *fixture) follows(s cache.Store) *follower {
	f.Helper()
	w := &follower{keys: map[string]int{}, tags: map[string]int{}}
	w.Feed = s.Follow(func(what cache.Invalidation) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if what.Tag != "" {
			w.tags[what.Tag]++
		} else {
			w.keys[what.Key]++
		}
	})
	f.eventually("the feed is live", func() bool { return w.Epoch() != 0 })
	return w
}

func (w *follower) heard(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keys[key]
}

func (w *follower) heardOfTag(tag string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tags[tag]
}

var followTests = []test{
	// pitfall 24
	{"FeedHearsEveryChangeByEveryProcess", nothing, func(f *fixture) {
		stores := []cache.Store{f.open(), f.open(), f.open()}
		var feeds []*follower
		for _, s := range stores {
			w := f.follows(s)
			defer w.Close()
			feeds = append(feeds, w)
		}
		epoch := feeds[0].Epoch()
		want := 0
		for _, s := range stores {
			f.set(s, key, "v")
			f.ok("Expire", s.Expire(f.ctx, key))
			f.ok("Delete", s.Delete(f.ctx, key))
			want += 3
		}
		for i, w := range feeds {
			f.eventually("every change is heard", func() bool { return w.heard(key) >= want })
			if w.heard("other") != 0 {
				f.Errorf("process %d heard of a key that nobody changed", i)
			}
		}
		if feeds[0].Epoch() != epoch {
			f.Error("the epoch changed, and nothing was missed")
		}
	}},

	{"FeedNamesKeysAsTheyWereGiven", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.follows(b)
		defer w.Close()
		for _, key := range []string{"", "}", "{a}b", "%", "a\nb", "\x00\xff", string(make([]byte, 4096))} {
			f.ok("Delete", a.Delete(f.ctx, key))
			f.eventually("the key is heard", func() bool { return w.heard(key) > 0 })
		}
	}},

	{"FeedThatIsClosedIsDownAndHearsNothing", nothing, func(f *fixture) {
		s := f.open()
		w, other := f.follows(s), f.follows(s)
		defer other.Close()
		w.Close()
		f.ok("Delete", s.Delete(f.ctx, key))
		f.eventually("the other feed hears", func() bool { return other.heard(key) > 0 })
		if w.Epoch() != 0 || w.heard(key) != 0 {
			f.Errorf("epoch %d, heard %d", w.Epoch(), w.heard(key))
		}
	}},

	{"FeedOfAClosedStoreIsDown", nothing, func(f *fixture) {
		s := f.open()
		w := f.follows(s)
		f.ok("Close", s.Close())
		if w.Epoch() != 0 {
			f.Errorf("epoch %d", w.Epoch())
		}
	}},

	{"FailuresInARowAreCountedFleetWide", nothing, func(f *fixture) {
		a, b := f.open(), f.open()
		failures := func(s cache.Store) *cache.Lease {
			f.Helper()
			var l *cache.Lease
			f.eventually("the pause ends", func() bool {
				answer := f.acquire(s, key, anAsk())
				l = answer.Lease
				return answer.Verdict == cache.Granted
			})
			return l
		}
		const pause = 20 * time.Millisecond
		for want, s := range []cache.Store{a, b, a} {
			l := failures(s)
			if l.Failures != want {
				f.Errorf("%d failures, want %d", l.Failures, want)
			}
			f.fails(s, l, "why", pause)
		}
		l := failures(b)
		f.fails(b, l, "a failure without a pause is none of the row", 0)
		if l := failures(b); l.Failures != 3 {
			f.Errorf("%d failures, want 3", l.Failures)
		} else {
			f.fills(b, l, "v")
		}
		f.ok("Delete", a.Delete(f.ctx, key))
		l = failures(a)
		if l.Failures != 0 {
			f.Errorf("%d failures after a fill", l.Failures)
		}
		for name, forgive := range map[string]func(){
			"Set":   func() { f.set(b, key, "v"); f.ok("Delete", b.Delete(f.ctx, key)) },
			"Reset": func() { f.ok("Reset", b.Reset(f.ctx, key)) },
		} {
			f.fails(a, l, "why", pause)
			forgive()
			if l = failures(a); l.Failures != 0 {
				f.Errorf("%d failures after %s", l.Failures, name)
			}
		}
	}},
}
