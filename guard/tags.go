package guard

import (
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

// A tagger knows which tags values carry, and how the store names them.
type tagger struct {
	prefix string                               // in the store, as of keys
	own    []string                             // Policy.Tags
	of     func(key string, value any) []string // TagsOf; nil: none
}

// stored are tags as the store knows them.
func (t *tagger) stored(tags []string) []string {
	out := distinct(tags)
	for i, tag := range out {
		out[i] = t.prefix + tag
	}
	return out
}

// ofValue are all tags of a value that is given some.
func (t *tagger) ofValue(key string, value any, given ...string) []string {
	if t.of == nil {
		return given
	}
	return slices.Concat(given, t.of(key, value))
}

// lacks returns the first of the tags that a stored entry does not carry.
func (t *tagger) lacks(entry *store.Entry, tags []string) (tag string, lacks bool) {
	for _, tag := range tags {
		if !slices.Contains(entry.Tags, t.prefix+tag) {
			return tag, true
		}
	}
	return "", false
}
