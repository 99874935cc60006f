package storetest

import (
	"sync"

	"github.com/stampedeguard/stampede/internal/store"
)

// A follower counts the invalidations that a feed has told.
type follower struct {
	*store.Feed
	mu   sync.Mutex
	told map[store.Invalidation]int
}

// follows returns a feed of s that is up.
func (f *fixture) follows(s store.Store) *follower {
	f.Helper()
	w := &follower{told: map[store.Invalidation]int{}}
	w.Feed = s.Follow(func(what store.Invalidation) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told[what]++
	})
	f.eventually("the feed is up", func() bool { return w.Epoch() != 0 })
	return w
}

func (w *follower) heard(key string) int { return w.count(store.Invalidation{Key: key}) }

func (w *follower) heardOfTag(tag string) int { return w.count(store.Invalidation{Tag: tag}) }

func (w *follower) count(what store.Invalidation) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told[what]
}

var followTests = []test{
	// pitfall 24
	{"FeedHearsChangesByAllProcesses", func(f *fixture) {
		stores := []store.Store{f.open(), f.open(), f.open()}
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
			f.change(s, store.Expire, key)
			f.change(s, store.Delete, key)
			want += 3
		}
		for i, w := range feeds {
			f.eventually("all changes are heard", func() bool { return w.heard(key) >= want })
			if w.heard("unchanged") != 0 {
				f.Errorf("process %d heard of a key that was not changed", i)
			}
		}
		if feeds[0].Epoch() != epoch {
			f.Error("the epoch changed, and nothing was missed")
		}
	}},

	{"FeedNamesKeysAsTheyWereGiven", func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.follows(b)
		defer w.Close()
		for _, key := range []string{"", "}", "{a}b", "%", "a\nb", "\x00\xff", string(make([]byte, 4096))} {
			f.change(a, store.Delete, key)
			f.eventually("the key is heard", func() bool { return w.heard(key) > 0 })
		}
	}},

	{"ClosedFeedIsDownAndHearsNothing", func(f *fixture) {
		s := f.open()
		w, other := f.follows(s), f.follows(s)
		defer other.Close()
		w.Close()
		f.change(s, store.Delete, key)
		f.eventually("the other feed hears", func() bool { return other.heard(key) > 0 })
		if w.Epoch() != 0 || w.heard(key) != 0 {
			f.Errorf("epoch %d, heard %d", w.Epoch(), w.heard(key))
		}
	}},

	{"FeedOfAClosedStoreIsDown", func(f *fixture) {
		s := f.open()
		w := f.follows(s)
		f.ok("Close", s.Close())
		if w.Epoch() != 0 {
			f.Errorf("epoch %d", w.Epoch())
		}
		late := s.Follow(func(store.Invalidation) {})
		defer late.Close()
		if late.Epoch() != 0 {
			f.Errorf("epoch %d of a feed that was opened later", late.Epoch())
		}
	}},

	{"FeedHearsOfTags", func(f *fixture) {
		a, b := f.open(), f.open()
		w := f.follows(b)
		defer w.Close()
		tags := []string{"t", "}", "k", "\x00\xff"}
		f.ok("DeleteTag", a.ChangeTags(f.ctx, store.DeleteTag, tags[:2]))
		f.ok("ExpireTag", a.ChangeTags(f.ctx, store.ExpireTag, tags[2:]))
		for _, tag := range tags {
			f.eventually("the tag is heard", func() bool { return w.heardOfTag(tag) > 0 })
			if w.heard(tag) != 0 {
				f.Errorf("%q was heard as a key", tag)
			}
		}
	}},
}
