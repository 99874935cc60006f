package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/internal/store"
	"github.com/stampedeguard/stampede/internal/tap"
)

// ctx is for calls that nothing is to end.
var ctx = context.Background()

func tagged(tags ...string) func(*guard.Policy) {
	return func(p *guard.Policy) { p.Tags = tags }
}

// withTags is a fetch for Load that adds tags to its value.
func (o *origin) withTags(tags ...string) func(context.Context, *guard.Fill[string]) (string, error) {
	return func(ctx context.Context, f *guard.Fill[string]) (string, error) {
		f.Tags = append(f.Tags, tags...)
		return o.fetch(ctx)
	}
}

func loads(w *world, g *guard.Guard[string], key string, fetch func(context.Context, *guard.Fill[string]) (string, error)) guard.Result[string] {
	w.Helper()
	r, err := g.Load(ctx, key, fetch)
	must(w, err)
	return r
}

func TestDeleteTagTakesWhateverCarriesTheTag(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(3, policy(tagged("all")))
		o := &origin{}
		fill := func() {
			get(w, fleet[0], "a", o.fetch)
			loads(w, fleet[1], "b", o.withTags("red", "round", "red"))
			loads(w, fleet[2], "c", o.withTags("round"))
			must(w, fleet[0].Set(ctx, "d", "set", "red"))
		}
		stored := func() string {
			var s []string
			for _, key := range []string{"a", "b", "c", "d"} {
				found := 0
				for _, g := range fleet {
					if _, err := g.Peek(ctx, key); err == nil {
						found++
					} else if !errors.Is(err, guard.ErrMiss) {
						w.Errorf("Peek: %v", err)
					}
				}
				if found == len(fleet) {
					s = append(s, key)
				} else if found != 0 {
					w.Errorf("%d of %d processes find %s", found, len(fleet), key)
				}
			}
			return strings.Join(s, "")
		}
		for i, c := range []struct{ tags, left string }{
			{"red", "ac"}, {"round", "ad"}, {"red round", ""}, {"all", ""}, {"nothing", "abcd"}, {"", "abcd"},
		} {
			fill()
			if got := stored(); got != "abcd" {
				w.Fatalf("before: %q", got)
			}
			must(w, fleet[i%3].DeleteTag(ctx, strings.Fields(c.tags)...))
			if c.tags == "red round" {
				c.left = "a"
			}
			if got := stored(); got != c.left {
				w.Errorf("after DeleteTag(%s) %q is left, want %q", c.tags, got, c.left)
			}
		}
		if got := fleet[0].Stats().Invalidated; got != 0 {
			w.Errorf("%d fills met a deletion", got)
		}
	})
}

func TestExpireTagKeepsValuesForStaleAndValidation(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(func(p *guard.Policy) { p.Stale = time.Hour }))
		o := &origin{takes: time.Second}
		loads(w, fleet[0], "k", o.withTags("t"))
		must(w, fleet[1].ExpireTag(ctx, "t"))
		given := make(chan *string, 1)
		fetch := func(_ context.Context, f *guard.Fill[string]) (string, error) {
			given <- f.Stale
			return "", guard.ErrNotModified
		}
		if r := loads(w, fleet[0], "k", fetch); r.Value != "v1" || r.Source != guard.Stale {
			w.Errorf("%+v", r)
		}
		time.Sleep(time.Second)
		if v := <-given; v == nil || *v != "v1" {
			w.Errorf("the refresh was given %v", v)
		}
		// It is fresh again, and still carries the tag.
		if r := loads(w, fleet[1], "k", o.withTags()); r.Value != "v1" || r.Source != guard.FromStore {
			w.Errorf("%+v", r)
		}
		must(w, fleet[1].DeleteTag(ctx, "t"))
		if _, err := fleet[0].Peek(ctx, "k"); !errors.Is(err, guard.ErrMiss) {
			w.Errorf("Peek: %v", err)
		}
	})
}

func TestTagExpiredDuringAFetchMakesItsValueStale(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(func(p *guard.Policy) { p.Stale = time.Hour }))[0]
		must(w, g.Set(ctx, "other", "x", "t")) // a tag that nothing carries needs no record
		r := loads(w, g, "k", func(ctx context.Context, f *guard.Fill[string]) (string, error) {
			f.Tags = []string{"t"}
			return "v", g.ExpireTag(ctx, "t")
		})
		if r.Source != guard.Fetched || !r.Stored || r.TTL != 0 {
			w.Errorf("%+v", r)
		}
	})
}

// Each way by which a value may reach a caller: a value that was fetched before a
// DeleteTag has returned reaches no caller that comes after it. P3
func TestDeleteTagHidesEarlierFetchesFromLaterCallers(t *testing.T) {
	stale := func(p *guard.Policy) { p.Stale, p.Beta = time.Hour, guard.Off }
	for _, c := range []struct {
		name   string
		policy []func(*guard.Policy)
		// run has old values fetched until it returns, with tag t on them. It deletes the
		// tag once they are fetched. A later Get must not return any of them.
		run func(w *world, fleet []*guard.Guard[string], old fetcher)
	}{
		{"stored", nil, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			get(w, fleet[1], "k", old)
			get(w, fleet[0], "k", never) // so that it knows of the tags
			must(w, fleet[1].DeleteTag(ctx, "t"))
		}},
		{"stored, stale", []func(*guard.Policy){stale}, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			get(w, fleet[0], "k", old)
			time.Sleep(2 * time.Minute)
			must(w, fleet[1].DeleteTag(ctx, "t"))
		}},
		{"Set", nil, func(w *world, fleet []*guard.Guard[string], _ fetcher) {
			must(w, fleet[1].Set(ctx, "k", "old"))
			must(w, fleet[0].DeleteTag(ctx, "t"))
		}},
		{"being fetched here", nil, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			go func() { _, _ = fleet[0].Get(ctx, "k", old) }()
			time.Sleep(5 * time.Second)
			must(w, fleet[1].DeleteTag(ctx, "t"))
		}},
		{"being fetched in another process", nil, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			go func() { _, _ = fleet[1].Get(ctx, "k", old) }()
			time.Sleep(5 * time.Second)
			must(w, fleet[0].DeleteTag(ctx, "t"))
		}},
		{"being fetched in another process, and waited for", nil, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			go func() { _, _ = fleet[1].Get(ctx, "k", old) }()
			time.Sleep(time.Second)
			go func() { _, _ = fleet[0].Get(ctx, "k", old) }()
			time.Sleep(4 * time.Second)
			must(w, fleet[1].DeleteTag(ctx, "t"))
		}},
		{"being refreshed in the background", []func(*guard.Policy){stale}, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			get(w, fleet[0], "k", old)
			time.Sleep(2 * time.Minute)
			get(w, fleet[0], "k", old)
			time.Sleep(5 * time.Second)
			must(w, fleet[1].DeleteTag(ctx, "t"))
		}},
		{"being refreshed early", nil, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			get(w, fleet[0], "k", old)
			time.Sleep(58 * time.Second)
			get(w, fleet[0], "k", old)
			time.Sleep(5 * time.Second)
			must(w, fleet[1].DeleteTag(ctx, "t"))
		}},
		{"being fetched by Refresh", nil, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			get(w, fleet[0], "k", old)
			go func() { _, _ = fleet[0].Get(ctx, "k", old, guard.MaxAge(0)) }()
			time.Sleep(5 * time.Second)
			must(w, fleet[1].DeleteTag(ctx, "t"))
		}},
		{"too large to be stored", []func(*guard.Policy){func(p *guard.Policy) { p.MaxBytes = 2 }}, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			go func() { _, _ = fleet[0].Get(ctx, "k", old) }()
			time.Sleep(5 * time.Second)
			must(w, fleet[1].DeleteTag(ctx, "t"))
		}},
		{"kept for errors", []func(*guard.Policy){func(p *guard.Policy) { p.StaleIfError = time.Hour }}, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			get(w, fleet[0], "k", old)
			time.Sleep(2 * time.Minute)
			must(w, fleet[1].DeleteTag(ctx, "t"))
			_, err := fleet[0].Get(ctx, "k", func(context.Context) (string, error) { return "", errors.New("away") })
			if err == nil {
				w.Error("a deleted value stood in for an error")
			}
		}},
		{"kept for slow fetches", []func(*guard.Policy){func(p *guard.Policy) { p.StaleIfError, p.SoftTimeout = time.Hour, time.Second }}, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			get(w, fleet[0], "k", old)
			time.Sleep(2 * time.Minute)
			must(w, fleet[1].DeleteTag(ctx, "t"))
		}},
		{"near, here", []func(*guard.Policy){func(p *guard.Policy) { p.Near.MaxEntries = 10 }}, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			get(w, fleet[0], "k", old)
			if _, s := source(w, fleet[0], "k"); s != guard.FromNear {
				w.Errorf("from %v", s)
			}
			must(w, fleet[0].DeleteTag(ctx, "t"))
		}},
		{"near, told by another process", []func(*guard.Policy){func(p *guard.Policy) { p.Near.MaxEntries = 10 }}, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			get(w, fleet[0], "k", old)
			if _, s := source(w, fleet[0], "k"); s != guard.FromNear {
				w.Errorf("from %v", s)
			}
			must(w, fleet[1].DeleteTag(ctx, "t"))
			synctest.Wait() // for the message
		}},
		{"near, fetched meanwhile", []func(*guard.Policy){func(p *guard.Policy) { p.Near.MaxEntries = 10 }}, func(w *world, fleet []*guard.Guard[string], old fetcher) {
			go func() { _, _ = fleet[0].Get(ctx, "k", old) }()
			time.Sleep(5 * time.Second)
			must(w, fleet[1].DeleteTag(ctx, "t"))
			time.Sleep(10 * time.Second)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(2, policy(append(c.policy, tagged("t"))...))
				var deleted atomic.Bool
				old := func(context.Context) (string, error) {
					v := "old"
					if deleted.Load() {
						v = "new" // it may be run for a caller that has waited
					}
					time.Sleep(10 * time.Second)
					return v, nil
				}
				c.run(w, fleet, old)
				deleted.Store(true)
				fresh := func(context.Context) (string, error) {
					time.Sleep(3 * time.Second) // longer than SoftTimeout
					return "new", nil
				}
				for _, g := range fleet {
					if _, err := g.Peek(ctx, "k"); !errors.Is(err, guard.ErrMiss) {
						w.Errorf("Peek: %v", err)
					}
				}
				for _, a := range callers(fleet, 3, "k", fresh) {
					if a.value != "new" || a.err != nil {
						w.Errorf("%q, %v", a.value, a.err)
					}
				}
				time.Sleep(20 * time.Second) // until fetches of old values have ended
				for _, a := range callers(fleet, 3, "k", fresh) {
					if a.value != "new" || a.err != nil {
						w.Errorf("later: %q, %v", a.value, a.err)
					}
				}
			})
		})
	}
}

// A fillHook holds back a fill between the ties and the script that stores.
type fillHook struct {
	armed         atomic.Bool
	held, release chan struct{}
}

func (h *fillHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *fillHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *fillHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		// Fill is the script of 5 keys and 7 arguments.
		if cmd.Name() == "evalsha" && cmd.Args()[2] == 5 && len(cmd.Args()) == 3+5+7 && h.armed.CompareAndSwap(true, false) {
			close(h.held)
			<-h.release
		}
		return next(ctx, cmd)
	}
}

// A deletion may come between the last look at the tags and the script that stores. The
// value is stored then, and a message tells of it. No caller that came after the deletion
// is given it, here or there.
func TestDeleteTagBetweenTieAndFillIsSeen(t *testing.T) {
	inRedis(t, func(w *world) {
		client := w.server.Client()
		h := &fillHook{held: make(chan struct{}), release: make(chan struct{})}
		client.AddHook(h)
		store, err := cache.NewRedis(client, cache.Options{Namespace: "test", RedisTimeout: time.Minute})
		must(w, err)
		w.Cleanup(func() { closed(w.T, store) })
		here, there := w.guard(store, policy(tagged("t"))), w.guard(w.open(), policy(tagged("t")))
		time.Sleep(time.Second)
		get(w, here, "loads the scripts", (&origin{}).fetch)
		h.armed.Store(true)
		early := make(chan answer, 2)
		var deleted atomic.Bool
		old := func(context.Context) (string, error) {
			v := "old"
			if deleted.Load() {
				v = "new"
			}
			time.Sleep(time.Second)
			return v, nil
		}
		for _, g := range []*guard.Guard[string]{here, there} {
			go func() {
				v, err := g.Get(ctx, "k", old)
				early <- answer{value: v, err: err}
			}()
			time.Sleep(100 * time.Millisecond)
		}
		<-h.held
		must(w, there.DeleteTag(ctx, "t"))
		deleted.Store(true)
		late := make(chan answer, 4)
		for _, g := range []*guard.Guard[string]{here, here, there, there} {
			go func() {
				v, err := g.Get(ctx, "k", func(context.Context) (string, error) { return "new", nil })
				late <- answer{value: v, err: err}
			}()
		}
		time.Sleep(2 * time.Second) // the other process asks again meanwhile
		close(h.release)
		for range cap(late) {
			if a := <-late; a.value != "new" || a.err != nil {
				w.Errorf("%q, %v", a.value, a.err)
			}
		}
		if a := <-early; a.err != nil || a.value != "old" && a.value != "new" {
			w.Errorf("%q, %v", a.value, a.err)
		}
		<-early
	})
}

func TestFetchGetsNoStaleValueOfADeletedTag(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy(tagged("t"), func(p *guard.Policy) { p.StaleIfError = time.Hour }))
		get(w, fleet[0], "k", (&origin{}).fetch)
		time.Sleep(2 * time.Minute)
		// Both read the stale value; the second waits for the first.
		hung := make(chan error, 1)
		go func() {
			_, err := fleet[0].Get(ctx, "k", func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() })
			hung <- err
		}()
		synctest.Wait()
		given := make(chan *string, 1)
		go func() {
			_, _ = fleet[1].Load(ctx, "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
				given <- f.Stale
				return "new", nil
			})
		}()
		time.Sleep(time.Second)
		must(w, fleet[0].DeleteTag(ctx, "t"))
		must(w, fleet[0].Close())
		if v := <-given; v != nil {
			w.Errorf("the fetch was given %q", *v)
		}
		if err := <-hung; err == nil {
			w.Error("the hung fetch brought a value")
		}
	})
}

func TestFillRefusedByADeletionIsCounted(t *testing.T) {
	inWorlds(t, func(w *world) {
		events := &recorder{}
		fleet := w.fleet(2, policy(tagged("t"), func(p *guard.Policy) { p.Observer = events }))
		r := loads(w, fleet[0], "k", func(context.Context, *guard.Fill[string]) (string, error) {
			return "v", fleet[1].DeleteTag(ctx, "t")
		})
		if r.Stored || r.Value != "v" || fleet[0].Stats().Invalidated != 1 || fleet[0].Stats().FillsRefused != 1 {
			w.Errorf("%+v, %+v", r, fleet[0].Stats())
		}
		if n := events.count(cache.FillRefused); n != 1 {
			w.Errorf("%d refusals were reported", n)
		}
		o := &origin{}
		get(w, fleet[1], "k", o.fetch) // the lease is free
		o.fetched(w, 1)
	})
}

func TestNotFoundCarriesTags(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		missing := func(_ context.Context, f *guard.Fill[string]) (string, error) {
			f.Tags = append(f.Tags, "t")
			return "", guard.ErrNotFound
		}
		for _, g := range fleet {
			if _, err := g.Load(ctx, "k", missing); !errors.Is(err, guard.ErrNotFound) {
				w.Errorf("%v", err)
			}
		}
		must(w, fleet[1].DeleteTag(ctx, "t"))
		if v := get(w, fleet[0], "k", func(context.Context) (string, error) { return "v", nil }); v != "v" {
			w.Errorf("%q", v)
		}
	})
}

func TestGuardsDoNotShareTags(t *testing.T) {
	inWorlds(t, func(w *world) {
		s := w.open()
		one := w.guard(s, policy(tagged("t")))
		other, err := guard.New[string](s, "other", policy(tagged("t")))
		must(w, err)
		defer other.Close()
		time.Sleep(time.Second)
		get(w, one, "k", (&origin{}).fetch)
		must(w, other.DeleteTag(ctx, "t"))
		get(w, one, "k", never)
	})
}

func TestTagsAreValidated(t *testing.T) {
	inMemory(t, func(w *world) {
		s := w.open()
		many := make([]string, 17)
		for i := range many {
			many[i] = fmt.Sprint(i)
		}
		g := w.guard(s, policy())
		for name, tags := range map[string][]string{"an empty tag": {"t", ""}, "a long tag": {strings.Repeat("t", 257)}, "many": many} {
			if _, err := guard.New[string](s, "g", policy(tagged(tags...))); err == nil || !strings.Contains(err.Error(), "Tags") {
				w.Errorf("%s: New: %v", name, err)
			}
			if err := g.Set(ctx, "k", "v", tags...); err == nil || !strings.Contains(err.Error(), "tag") {
				w.Errorf("%s: Set: %v", name, err)
			}
			if _, err := g.Load(ctx, "k", (&origin{}).withTags(tags...)); err == nil || !strings.Contains(err.Error(), "Fill.Tags") {
				w.Errorf("%s: Load: %v", name, err)
			}
			if err := g.DeleteTag(ctx, tags...); (err == nil) != (name == "many") {
				w.Errorf("%s: DeleteTag: %v", name, err)
			}
		}
		longest := slices.Concat(many[:15], []string{strings.Repeat("t", 256), many[0]})
		loads(w, g, "k", (&origin{}).withTags(longest...))
		must(w, g.Set(ctx, "k", "v", longest...))
		get(w, g, "k", never)
	})
}

// As for changes of keys: a value that was read before a tag's deletion, and comes
// after the message about it, is not put into the near cache.
func TestTaggedReadThatRacedADeletionIsDropped(t *testing.T) {
	inWorlds(t, func(w *world) {
		s := tap.New(w.open())
		p := nearPolicy(tagged("t"))
		g, other := w.guard(s, p), w.guard(w.open(), p)
		time.Sleep(time.Second)
		must(w, other.Set(ctx, "k", "old"))
		synctest.Wait()
		gate := hold(s)
		got := make(chan string)
		go func() { got <- get(w, g, "k", never) }()
		<-gate.read
		must(w, other.DeleteTag(ctx, "t"))
		synctest.Wait() // the message has arrived
		gate.open <- struct{}{}
		if v := <-got; v != "old" {
			w.Fatalf("the read from before got %q", v)
		}
		s.OnRead = nil
		if v := get(w, g, "k", (&origin{}).fetch); v != "v1" {
			w.Errorf("got %q", v)
		}
		if _, src := source(w, g, "k"); src != guard.FromNear {
			w.Errorf("the new value is from %v", src)
		}
	})
}

// clockless is a store without a readable clock of tags.
type clockless struct{ *tap.Store }

func (c clockless) Unwrap() store.Store { return c }

func (clockless) Stamp(context.Context) (store.Stamp, error) {
	return store.Stamp{}, store.ErrUnavailable
}

func TestTaggedValuesNeedTheClockOfTags(t *testing.T) {
	inWorlds(t, func(w *world) {
		rec := &recorder{}
		g := w.guard(clockless{tap.New(w.open())}, policy(func(p *guard.Policy) { p.Observer = rec }))
		time.Sleep(time.Second)
		o := &origin{}
		for range 2 {
			if r := loads(w, g, "k", o.withTags("t")); r.Stored || r.Source != guard.Fetched {
				w.Errorf("%+v", r)
			}
		}
		o.fetched(w, 2)
		if r := loads(w, g, "k", o.withTags()); !r.Stored {
			w.Errorf("without tags: %+v", r)
		}
		for _, e := range rec.events {
			if e.Kind == cache.FillRefused && (e.Reason != "tag" || !strings.Contains(e.Err.Error(), "the clock of tags could not be read")) {
				w.Errorf("refused as %q: %v", e.Reason, e.Err)
			}
		}
		if n := rec.count(cache.FillRefused); n != 2 {
			w.Errorf("%d fills were refused", n)
		}
	})
}

// No key in Redis grows with the number of entries that carry a tag, and all keys of tags
// end.
func TestTagsLeaveNothingBehind(t *testing.T) {
	inRedis(t, func(w *world) {
		g := w.fleet(1, policy(tagged("all")))[0]
		for i := range 100 {
			loads(w, g, fmt.Sprint(i), (&origin{}).withTags(fmt.Sprint("t", i%10)))
		}
		records := func() (n int) {
			for _, k := range w.server.Keys() {
				if strings.HasSuffix(k, ":tag") {
					n++
				}
			}
			return n
		}
		if n := records(); n != 11 {
			w.Errorf("%d records of 11 tags", n)
		}
		must(w, g.DeleteTag(ctx, "all"))
		time.Sleep(3 * time.Minute)
		if n := records(); n != 1 { // a record of the values fetched until now may last an hour
			w.Errorf("%d records are left of those that no value carries", n)
		}
		time.Sleep(time.Hour)
		var left []string
		for _, k := range w.server.Keys() {
			if k != "test:{tags}:clock" {
				left = append(left, k)
			}
		}
		if len(left) > 0 {
			w.Errorf("left: %q", left)
		}
	})
}

// A tag that can't be deleted is named, and the others are deleted all the same.
func TestDeleteTagNamesFailedTags(t *testing.T) {
	inRedis(t, func(w *world) {
		g := w.fleet(1, policy())[0]
		must(w, g.Set(ctx, "k", "v", "good"))
		must(w, w.server.Set("test:{g:bad}:tag", "of another type"))
		err := g.DeleteTag(ctx, "good", "bad")
		if !errors.Is(err, guard.ErrUnavailable) || !errors.Is(err, cache.ErrRefused) || !strings.Contains(err.Error(), `"g:bad"`) || strings.Contains(err.Error(), "good") {
			w.Errorf("DeleteTag: %v", err)
		}
		if _, err := g.Peek(ctx, "k"); !errors.Is(err, guard.ErrMiss) {
			w.Errorf("Peek: %v", err)
		}
		// A value that carries the tag is handed out and not stored. No lease is left behind.
		for range 2 {
			if r := loads(w, g, "k", (&origin{}).withTags("bad")); r.Stored || r.Source != guard.Fetched {
				w.Errorf("%+v", r)
			}
		}
		if err := g.Set(ctx, "k", "v", "bad"); !errors.Is(err, cache.ErrRefused) {
			w.Errorf("Set: %v", err)
		}
	})
}

// With Redis away, the error of a deletion says whether it may still be carried out. A value
// with tags that is fetched meanwhile is handed out like one without tags.
func TestDeleteTagWithRedisAwayIsAnError(t *testing.T) {
	inRedis(t, func(w *world) {
		g := w.fleet(1, policy(tagged("t")))[0]
		must(w, g.Set(ctx, "k", "v"))
		must(w, w.server.Stop())
		for range 5 {
			if err := g.DeleteTag(ctx, "t"); !errors.Is(err, guard.ErrUnavailable) {
				w.Errorf("DeleteTag: %v", err)
			}
		}
		if r := loads(w, g, "k", (&origin{}).withTags("u")); r.Source != guard.UnguardedFetch || r.Value != "v1" {
			w.Errorf("%+v", r)
		}
	})
}

// The values of a batch carry tags, and meet deletions, like the value of one key.
func TestBatchCarriesTags(t *testing.T) {
	inWorlds(t, func(w *world) {
		tagsOf := guard.TagsOf(func(key, value string) []string { return []string{"key:" + key, "value:" + value} })
		g := w.fleet(1, policy(tagged("all")), tagsOf)[0]
		n := 0
		many := func(keys ...string) map[string]string {
			got, err := g.GetMany(ctx, keys, func(_ context.Context, keys []string) (map[string]string, error) {
				m := map[string]string{}
				for _, k := range keys {
					n++
					m[k] = "v"
				}
				return m, nil
			})
			must(w, err)
			return got
		}
		fetched := func(want int, why string, keys ...string) {
			w.Helper()
			n = 0
			many(keys...)
			if n != want {
				w.Errorf("%s: %d keys were fetched, want %d", why, n, want)
			}
		}
		fetched(3, "cold", "a", "b", "c")
		fetched(0, "warm", "a", "b", "c")
		must(w, g.DeleteTag(ctx, "key:a"))
		fetched(1, "one deleted by its key's tag", "a", "b", "c")
		must(w, g.DeleteTag(ctx, "all"))
		fetched(3, "all deleted by the policy's tag", "a", "b", "c")
		must(w, g.DeleteTag(ctx, "value:v"))
		fetched(3, "all deleted by their value's tag", "a", "b", "c")
		must(w, g.Set(ctx, "d", "v"))
		fetched(0, "set", "d")
		must(w, g.DeleteTag(ctx, "value:v"))
		fetched(1, "deleted after it was set", "d")
	})
}

// A value that was fetched in a batch before a tag was deleted is not stored, and is not
// given to later callers.
func TestTagDeletedWhileABatchIsFetched(t *testing.T) {
	inWorlds(t, func(w *world) {
		g := w.fleet(1, policy(), guard.TagsOf(func(key, _ string) []string { return []string{key} }))[0]
		began, goOn := make(chan struct{}), make(chan struct{})
		done := make(chan map[string]string)
		go func() {
			got, err := g.GetMany(ctx, []string{"a", "b"}, func(context.Context, []string) (map[string]string, error) {
				close(began)
				<-goOn
				return map[string]string{"a": "old", "b": "old"}, nil
			})
			if err != nil {
				w.Error(err)
			}
			done <- got
		}()
		<-began
		must(w, g.DeleteTag(ctx, "a"))
		later := make(chan string)
		go func() { later <- get(w, g, "a", func(context.Context) (string, error) { return "new", nil }) }()
		synctest.Wait()
		close(goOn)
		if got := <-done; got["a"] != "old" || got["b"] != "old" {
			w.Errorf("the call from before the tag was deleted got %v", got)
		}
		if got := <-later; got != "new" {
			w.Errorf("the call from after the tag was deleted got %q", got)
		}
		for key, want := range map[string]string{"a": "new", "b": "old"} {
			if r, err := g.Peek(ctx, key); err != nil || r.Value != want {
				w.Errorf("%s is stored as %q, %v, want %q", key, r.Value, err, want)
			}
		}
	})
}

// An entry with unreadable tags is fetched anew and overwritten, among many as by itself.
func TestDamagedTagsOfABatchAreOverwritten(t *testing.T) {
	inRedis(t, func(w *world) {
		g := w.fleet(1, policy(), guard.TagsOf(func(key, _ string) []string { return []string{key} }))[0]
		keys := []string{"a", "b", "c", "d"}
		o := &manyOrigin{}
		getMany(w, g, keys, o.fetch)
		for key, damage := range map[string]func(entry []byte) []byte{
			"a": func(b []byte) []byte { return b[:store.HeaderSize+10] },
			"b": func(b []byte) []byte { b[store.HeaderSize+16] = 200; return b },
			"c": func(b []byte) []byte { b[store.HeaderSize+17] = 0xff; return b },
		} {
			name := "test:{g:" + key + "}"
			v, err := w.server.Get(name)
			must(w, err)
			must(w, w.server.Set(name, string(damage([]byte(v)))))
			w.server.SetTTL(name, time.Minute)
		}
		for range 2 {
			equal(w, getMany(w, g, keys, o.fetch), valuesOf(keys))
		}
		o.called(w, 2)
		if n := g.Stats().Damaged; n != 3 {
			w.Errorf("%d entries were damaged, want 3", n)
		}
	})
}

// A Redis that fills up while something is fetched that carries tags takes the
// lease back all the same.
func TestInvalidTagsLeaveNoLease(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	admin := server.Client()
	guards := make([]*guard.Guard[string], 2)
	for i := range guards {
		s, err := cache.NewRedis(server.Client(), cache.Options{Namespace: "test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		if guards[i], err = guard.New[string](s, "g", guard.Policy{TTL: time.Minute, Tags: []string{"t"}, Lease: 30 * time.Second, FetchTimeout: 30 * time.Second}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = guards[i].Close() })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	full := func(limit string) {
		if err := admin.ConfigSet(ctx, "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := guards[0].Get(ctx, "one", func(context.Context) (string, error) { full("1"); return "v", nil }); v != "v" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	full("0")
	keys := []string{"a", "b"}
	got, err := guards[0].GetMany(ctx, keys, func(context.Context, []string) (map[string]string, error) { full("1"); return valuesOf(keys), nil })
	if len(got) != 2 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	full("0")
	for _, key := range append(keys, "one") {
		if n, err := admin.Exists(ctx, "test:{g:"+key+"}:lease").Result(); n != 0 || err != nil {
			t.Errorf("the lease of %s is left, %v", key, err)
		}
		if v, err := guards[1].Get(ctx, key, func(context.Context) (string, error) { return "new", nil }); v != "new" || err != nil {
			t.Errorf("%s: %q, %v", key, v, err)
		}
	}
}
