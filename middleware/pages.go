package middleware

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
)

// indexTTL is the lifetime of the index of a page's variants.
const indexTTL = time.Hour

// pages are the entries of the store, apart from how they come about.
type pages struct {
	guard  *guard.Guard[*httpcache.Page]
	marks  *marks
	rounds int // bounds the changes of an index at the same time
}

// A slot is a key of the guard for a page or for one of its variants.
type slot struct {
	page    string           // the page's own key
	ix      *httpcache.Index // nil: the slot is the page's own
	variant string
}

func (s *slot) key() string {
	if s.ix == nil {
		return s.page
	}
	return variantKey(s.page, s.ix, s.variant)
}

// names are the headers that the slot tells apart.
func (s *slot) names() []string {
	if s.ix == nil {
		return nil
	}
	return s.ix.Names
}

// variantKey is the key of one variant of a page (Vary).
func variantKey(key string, ix *httpcache.Index, variant string) string {
	return key + "\n" + ix.Suffix(variant)
}

// changeIndex changes the index of a page if it has that gen; any, if gen is empty. It
// returns the index that is stored then, or nil.
func (p *pages) changeIndex(ctx context.Context, page, gen string, change func(*httpcache.Index)) (*httpcache.Index, error) {
	for range p.rounds { // of changes at the same time, each has its turn
		_, turn, err := p.guard.Begin(ctx, page, nil, guard.MaxAge(0))
		switch {
		case err != nil:
			return nil, err
		case turn == nil:
			continue
		}
		f := turn.Fill
		f.Cost = 0 // no run
		if f.Stale == nil || (*f.Stale).Index == nil || gen != "" && (*f.Stale).Index.Gen != gen {
			turn.Release()
			return nil, nil
		}
		ix := *(*f.Stale).Index
		ix.Names, ix.Variants = slices.Clone(ix.Names), slices.Clone(ix.Variants)
		change(&ix)
		f.TTL, f.StaleFor = indexTTL, guard.Off
		if !turn.Store(&httpcache.Page{Index: &ix}) {
			return nil, nil
		}
		return &ix, nil
	}
	return nil, nil
}

// expireVariants makes the variants stale that the index of a page has. For others there
// may be runs under way: the index gets another gen, which their pages are not found
// under.
func (p *pages) expireVariants(ctx context.Context, page string) error {
	ix, err := p.changeIndex(ctx, page, "", (*httpcache.Index).Renew)
	if err != nil || ix == nil {
		return p.guard.Delete(ctx, page)
	}
	var errs []error
	for _, v := range ix.Variants {
		errs = append(errs, p.guard.Expire(ctx, page+"\n"+v))
	}
	return errors.Join(errs...)
}

// forget deletes keys.
func (p *pages) forget(ctx context.Context, keys []string) error {
	var errs []error
	for _, key := range keys {
		errs = append(errs, p.guard.Delete(ctx, key))
		p.marks.remove(key)
	}
	return errors.Join(errs...)
}

// expire makes the pages under keys stale.
func (p *pages) expire(ctx context.Context, keys []string) error {
	var errs []error
	for _, key := range keys {
		res, err := p.guard.Peek(ctx, key)
		switch {
		case errors.Is(err, guard.ErrMiss):
			err = p.guard.Delete(ctx, key)
		case err == nil && res.Value.Index != nil:
			err = p.expireVariants(ctx, key)
		case err == nil:
			err = p.guard.Expire(ctx, key)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lift ends the time in which a page's requests run side by side, as the response to one of
// them could be shared. The next run is stored. The response itself is not: its run had no
// lease, and a purge may have come since it began.
func (p *pages) lift(ctx context.Context, key string, began time.Time) {
	if p.marks.toLift(key, began) {
		_ = p.guard.Delete(context.WithoutCancel(ctx), key)
		p.marks.remove(key)
	}
}

// marks remembers for a moment that keys are marked, so that not every request for a
// private page asks Redis. An outdated mark costs runs that might have been shared, for
// rememberMark at most, and never shows a page to the wrong client.
type marks struct {
	until *lru.Cache[string, time.Time]

	mu     sync.Mutex
	lifted *lru.Cache[string, time.Time] // the last time of lift
}

const (
	rememberMark = time.Second
	maxMarks     = 4096 // the most recently used
)

func newMarks() *marks {
	m := &marks{}
	m.until, _ = lru.New[string, time.Time](maxMarks) // an error means a size below 1
	m.lifted, _ = lru.New[string, time.Time](maxMarks)
	return m
}

// remember notes that a request which came at a time has found the key marked, for the rest
// of the mark's time.
func (m *marks) remember(key string, came time.Time, left time.Duration) {
	if left = min(left, rememberMark); left <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if last, ok := m.lifted.Get(key); !ok || came.After(last) {
		m.until.Add(key, time.Now().Add(left))
	}
}

// has reports whether the key is known to be marked.
func (m *marks) has(key string) bool {
	until, ok := m.until.Get(key)
	return ok && time.Now().Before(until)
}

// remove removes the note that the key is marked.
func (m *marks) remove(key string) { m.until.Remove(key) }

// toLift reports whether a run that began at a time, and whose response could be shared, is
// to lift the key's mark. The mark may have been lifted since.
func (m *marks) toLift(key string, began time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last, ok := m.lifted.Get(key); ok && !began.After(last) {
		return false
	}
	m.lifted.Add(key, time.Now())
	return true
}
