package middleware

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/httpcache"
)

// indexTTL is the lifetime of the index of a page's variants.
const indexTTL = time.Hour

// pages are the entries of the store, apart from how they come about.
type pages struct {
	guard  *guard.Guard[*httpcache.Page]
	marks  *httpcache.Notes
	kept   *kept
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

// forget deletes keys, in their order, with the exceptions.
func (p *pages) forget(ctx context.Context, keys []string, except ...string) error {
	var errs []error
	for _, key := range keys {
		if slices.Contains(except, key) {
			continue
		}
		errs = append(errs, p.guard.Delete(ctx, key))
		p.marks.Remove(key)
	}
	return errors.Join(errs...)
}

// keep notes that a page is stored, and deletes the pages that lose their places to it, with
// their variants.
func (p *pages) keep(ctx context.Context, page string) {
	for _, key := range p.kept.add(page) {
		res, err := p.guard.Peek(ctx, key)
		if err == nil && res.Value.Index != nil {
			for _, suffix := range res.Value.Index.Suffixes() {
				_ = p.guard.Delete(ctx, key+"\n"+suffix)
			}
		}
		_ = p.guard.Delete(ctx, key)
	}
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
	if p.marks.ToLift(key, began) {
		_ = p.guard.Delete(context.WithoutCancel(ctx), key)
		p.marks.Remove(key)
	}
}
