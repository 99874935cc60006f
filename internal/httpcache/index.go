package httpcache

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// An Index is the value of a page's own key once a response has said Vary. The keys of
// the variants contain Gen, so a new Gen makes all variants unreachable.
type Index struct {
	Gen   string
	Names []string // that the responses vary on
	// Variants are the keys of rfc9111.VariantKey that are stored. A variant from before
	// a soft purge has its Gen of that time in front.
	Variants []string
}

// NewIndex returns the index of a page with its first variants.
func NewIndex(names []string, variants ...string) *Index {
	return &Index{Gen: RandomName(), Names: names, Variants: variants}
}

// Contains reports whether the index has a variant.
func (ix *Index) Contains(variant string) bool {
	return slices.ContainsFunc(ix.Variants, func(v string) bool { return strings.HasSuffix(v, variant) })
}

// Drop removes the variant that was used longest ago, and returns the end of its key. used
// tells the time of a variant's last use; zero: it is not known. Of several such variants
// the one that was added first is removed.
func (ix *Index) Drop(used func(variant string) time.Time) (suffix string) {
	oldest, first := 0, used(bare(ix.Variants[0]))
	for i, v := range ix.Variants {
		if at := used(bare(v)); at.Before(first) {
			oldest, first = i, at
		}
	}
	suffix = ix.Suffix(bare(ix.Variants[oldest]))
	ix.Variants = slices.Delete(ix.Variants, oldest, oldest+1)
	return suffix
}

// bare is a variant without the Gen that it may have in front.
func bare(variant string) string { return variant[max(len(variant)-variantSize, 0):] }

// Renew gives the index another Gen. The variants that it has stay reachable.
func (ix *Index) Renew() {
	for i, v := range ix.Variants {
		if len(v) == variantSize {
			ix.Variants[i] = ix.Gen + v
		}
	}
	ix.Gen = RandomName()
}

// variantSize is the size of an rfc9111.VariantKey.
const variantSize = 2 * sha256.Size

// Suffix is the end of a variant's key.
func (ix *Index) Suffix(variant string) string {
	for _, v := range ix.Variants {
		if len(v) > len(variant) && strings.HasSuffix(v, variant) {
			return v
		}
	}
	return ix.Gen + variant
}

// Suffixes are the ends of the keys of all variants.
func (ix *Index) Suffixes() []string {
	all := make([]string, len(ix.Variants))
	for i, v := range ix.Variants {
		all[i] = ix.Suffix(bare(v))
	}
	return all
}

// Covers reports whether the keys under the index tell apart responses that vary on the
// names. A nil index covers no names.
func (ix *Index) Covers(names []string) bool {
	for _, name := range names {
		if ix == nil || !slices.Contains(ix.Names, name) {
			return false
		}
	}
	return true
}

// With returns the names of the index and further ones, sorted.
func (ix *Index) With(names []string) []string {
	all := slices.Concat(ix.Names, names)
	slices.Sort(all)
	return slices.Compact(all)
}

// RandomName returns 16 random hexadecimal digits.
func RandomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
