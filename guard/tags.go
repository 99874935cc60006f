package guard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/stampedeguard/stampede/internal/store"
)

const (
	maxTags    = store.MaxTags
	maxTagSize = 256 // with the guard's name and a colon in front it fits in cache.MaxTagSize
)

// checkTags reports why a value can't carry the tags, if so.
func checkTags(tags []string) error {
	if n := len(distinct(tags)); n > maxTags {
		return fmt.Errorf("%d tags, at most %d are allowed", n, maxTags)
	}
	return checkTagSizes(tags)
}

func checkTagSizes(tags []string) error {
	for i, t := range tags {
		if len(t) == 0 || len(t) > maxTagSize {
			return fmt.Errorf("tag %d of %d has %d bytes, must have 1 to %d", i+1, len(tags), len(t), maxTagSize)
		}
	}
	return nil
}

// distinct returns the tags without repetitions, in their order.
func distinct(tags []string) []string {
	var out []string
	for i, t := range tags {
		if !slices.Contains(tags[:i], t) {
			out = append(out, t)
		}
	}
	return out
}

// storeTags are tags as the store knows them.
func (e *engine) storeTags(tags []string) []string {
	out := distinct(tags)
	for i, t := range out {
		out[i] = e.storeKey(t)
	}
	return out
}

// lackedTag is the first of the tags that a stored entry does not carry.
func (e *engine) lackedTag(entry *store.Entry, tags []string) (tag string, lacks bool) {
	for _, t := range tags {
		if !slices.Contains(entry.Tags, e.storeKey(t)) {
			return t, true
		}
	}
	return "", false
}

// addedTag is a tag that a fetch has set and the stale value it was given does not
// carry.
func (e *engine) addedTag(f *fill) (tag string, added bool) {
	if f.staleRead == nil {
		return "", false
	}
	return e.lackedTag(&f.staleRead.reading.Entry, f.tags)
}

// tagsOfValue are the tags that the policy finds a value to have.
func (e *engine) tagsOfValue(key string, value any) []string {
	if e.tagsOf == nil {
		return nil
	}
	return e.tagsOf(key, value)
}

// A stamping is a reading of the clock of tags, under way or done.
type stamping struct {
	done  chan struct{}
	stamp store.Stamp
	err   error
}

// mayCarryTags reports whether a fetched value of the flight may carry tags. One that
// is sure not to needs no stamp.
func (l *leader) mayCarryTags(f *flight) bool {
	return len(l.e.policy.Tags) > 0 || l.e.tagsOf != nil || l.told || f.known.found() != nil && len(f.known.reading.Entry.Tags) > 0
}

// beginStamp reads the clock beside the first acquire. Later ones are of flights that
// wait, most of which will never fetch.
func (l *leader) beginStamp(fs []*flight) {
	if l.stamping != nil || fs[0].heldMoment != 0 || !slices.ContainsFunc(fs, l.mayCarryTags) {
		return
	}
	s := &stamping{done: make(chan struct{})}
	l.stamping = s
	ctx := l.ctx // which the leader may replace
	l.e.flights.wg.Go(func() {
		defer close(s.done)
		s.stamp, s.err = l.e.store.Stamp(ctx)
	})
}

// errNoStamp: what was fetched can't be stored with its tags, as nobody knows
// what was deleted before it.
var errNoStamp = errors.New("guard: the clock of tags could not be read before the fetch")
