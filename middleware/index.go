package middleware

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/callers"
	"github.com/stampedeguard/stampede/internal/rfc9111"
)

// indexTTL is for how long it is remembered what a page varies on.
const indexTTL = time.Hour

// branch is for a response that varies, to a request for which that wasn't known.
// The page's own key then holds the index, at once, so that nobody waits for a
// variant that isn't theirs. The run goes on under its variant's key, whose lease
// is had before that of the page is given back.
func (c *call) branch(ctx context.Context, f *guard.Fill[*page], l *lead, passing bool) (*page, error) {
	r := l.run
	variant := rfc9111.VariantKey(l.d.Vary, r.req)
	ix := &index{gen: randomName(), names: l.d.Vary, variants: []string{variant}}
	f.TTL, f.StaleFor = indexTTL, guard.Off
	// The variant's lease comes after the run began. With the tags the index is not
	// stored if one was purged since, and so the variant can't be reached.
	f.Tags = append(f.Tags, l.tags...)
	under := *l
	under.key, under.ix, under.variant = variantKey(l.key, ix, variant), ix, variant
	begun := make(chan struct{})
	var once sync.Once
	c.m.background(func() {
		_, _ = c.m.guard.Load(callers.Apart(context.WithoutCancel(ctx)), under.key, func(ctx context.Context, f *guard.Fill[*page]) (*page, error) {
			once.Do(func() { close(begun) })
			f.Cost = 0 // the run is paid for
			return c.record(ctx, f, &under, passing)
		})
		once.Do(func() {
			// Not asked for: somebody was ahead of us, or nothing can be stored.
			c.note(r, decision{reason: "vary"})
			r.goPrivate()
			c.letStream(r)
			close(begun)
		})
	})
	select {
	case <-begun:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return &page{ix: ix}, nil
}

// learn adds to an index the names that a variant's response turned out to vary
// on besides. It takes the page's lease for that, so that a purge in between wins.
func (c *call) learn(ctx context.Context, l *lead) {
	names := slices.Clone(l.ix.names)
	for _, name := range l.d.Vary {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > rfc9111.MaxVaryNames {
		return
	}
	c.changeIndex(ctx, l, func(ix *index) { ix.names, ix.variants = names, nil })
}

// enlist adds a variant to the index, which bounds their number.
func (c *call) enlist(ctx context.Context, l *lead) {
	if l.ix.contains(l.variant) {
		return
	}
	c.changeIndex(ctx, l, func(ix *index) {
		if !ix.contains(l.variant) {
			ix.variants = append(ix.variants, l.variant)
		}
	})
}

// errIndexGone ends a change to an index. Who waited for the lease meanwhile looks
// again.
var errIndexGone = errors.New("middleware: the page's index has changed")

// changeIndex changes the index that a lead knows, in the background.
func (c *call) changeIndex(ctx context.Context, l *lead, change func(*index)) {
	pageKey := l.key[:len(l.key)-len("\n")-len(l.ix.gen)-len(l.variant)]
	ctx = callers.Apart(context.WithoutCancel(ctx))
	c.m.background(func() { _, _ = c.m.changeIndex(ctx, pageKey, l.ix.gen, change) })
}

// changeIndex changes the index of a page if it has that gen; any, if that is empty. It
// returns what is stored then, or nil.
func (m *Middleware) changeIndex(ctx context.Context, pageKey, gen string, change func(*index)) (*index, error) {
	var begun atomic.Bool
	fetch := func(ctx context.Context, f *guard.Fill[*page]) (*page, error) {
		begun.Store(true)
		res, err := m.guard.Peek(ctx, pageKey)
		if err != nil || res.Value.ix == nil || gen != "" && res.Value.ix.gen != gen {
			return nil, errIndexGone
		}
		ix := *res.Value.ix
		ix.names, ix.variants = slices.Clone(ix.names), slices.Clone(ix.variants)
		change(&ix)
		f.TTL, f.StaleFor, f.Cost = max(res.TTL, time.Millisecond), guard.Off, 0
		return &page{ix: &ix}, nil
	}
	// Changes at the same time share a fetch, which is one of them: the others take
	// their turns.
	for range m.opts.MaxVariants + maxRounds {
		res, err := m.guard.Load(ctx, pageKey, fetch, guard.MaxAge(0))
		switch {
		case err != nil && (begun.Load() || !errors.Is(err, errIndexGone)):
			return nil, err
		case begun.Load() && res.Stored && res.Value != nil:
			return res.Value.ix, nil
		case begun.Load():
			return nil, nil
		}
	}
	return nil, nil
}

// expireVariants marks those variants of a page stale that its index has. Of others
// there may be runs under way: the index gets another gen, so that what these bring
// isn't found.
func (m *Middleware) expireVariants(ctx context.Context, pageKey string) error {
	ix, err := m.changeIndex(ctx, pageKey, "", func(ix *index) {
		for i, v := range ix.variants {
			if len(v) == variantSize {
				ix.variants[i] = ix.gen + v
			}
		}
		ix.gen = randomName()
	})
	if err != nil || ix == nil {
		return m.guard.Delete(ctx, pageKey)
	}
	var errs []error
	for _, v := range ix.variants {
		errs = append(errs, m.guard.Expire(ctx, pageKey+"\n"+v))
	}
	return errors.Join(errs...)
}
