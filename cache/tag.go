package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"
)

// What tags are bounded by, as users of a store name them.
const (
	// MaxTags is how many tags one entry may carry.
	MaxTags = 16
	// MaxTagSize is the longest tag, in bytes. The shortest has one.
	MaxTagSize = 512
)

const (
	// tagWindow is how long a tag's record is kept, at the least, after the tag
	// was deleted or expired: a fetch that was under way then must find it. So
	// what took longer to fetch isn't stored with tags.
	tagWindow = time.Hour
	// tagSlack is how much longer than the entries that carry its tag a record is
	// kept: they are stored a little after it was written.
	tagSlack = time.Minute
)

// ErrInvalidated is what Fill returns for an entry that carries a tag which was
// deleted while the entry was fetched: it wasn't stored, and its lease has been
// released.
var ErrInvalidated = errors.New("cache: a tag was deleted meanwhile")

// An Epoch names a clock of tags: 8 random bytes, drawn when there was none.
type Epoch [8]byte

// A Stamp is a reading of the clock that every deletion of a tag advances. An
// entry that carries tags has the stamp from before its fetch started: a tag
// that was deleted at a higher one makes it invalid. See [Store.Stamp].
type Stamp struct {
	Epoch Epoch
	N     uint64

	taken time.Time // before it was asked for; zero if it was read from an entry
}

// buckets is how many buckets the clock remembers changes by: so many that a fetch
// whose tag has no record is seldom refused for another tag's change.
const buckets = 256

// A bucket is one of those, to which a tag belongs by its hash: FNV-1a, 64 bits.
type bucket byte

func bucketOf(tag string) bucket {
	h := fnv.New64a()
	_, _ = h.Write([]byte(tag))
	return bucket(h.Sum64() % buckets)
}

// bucketsOf are the buckets of the tags, each once.
func bucketsOf(tags []string) []bucket {
	var all []bucket
	var seen [buckets]bool
	for _, t := range tags {
		if b := bucketOf(t); !seen[b] {
			seen[b] = true
			all = append(all, b)
		}
	}
	return all
}

// field is the bucket's name in the clock.
func (b bucket) field() string { return fmt.Sprintf("%02x", byte(b)) }

// An Invalidation is a change that near caches hear of: of a key, or of all
// entries that carry a tag.
type Invalidation struct {
	Key string
	Tag string // empty: it is of the key
}

// Invalidations travel with their kind in front.
const (
	keyChanged = "k"
	tagChanged = "t"
)

// parseInvalidation answers false for what is none of ours.
func parseInvalidation(payload string) (Invalidation, bool) {
	switch {
	case len(payload) > 1 && payload[:1] == tagChanged:
		return Invalidation{Tag: payload[1:]}, true
	case len(payload) > 0 && payload[:1] == keyChanged:
		return Invalidation{Key: payload[1:]}, true
	}
	return Invalidation{}, false
}

// CheckTags reports why an entry can't carry these tags, if so.
func CheckTags(tags []string) error {
	if len(tags) > MaxTags {
		return fmt.Errorf("cache: %d tags, at most %d are allowed", len(tags), MaxTags)
	}
	return checkTagSizes(tags)
}

func checkTagSizes(tags []string) error {
	for _, t := range tags {
		if len(t) == 0 || len(t) > MaxTagSize {
			return fmt.Errorf("cache: a tag of %d bytes, 1 to %d are allowed", len(t), MaxTagSize)
		}
	}
	return nil
}

// tagsSize is how many bytes the block of tags takes up in an entry.
func (e *Entry) tagsSize() int {
	if len(e.Tags) == 0 {
		return 0
	}
	n := len(e.Stamp.Epoch) + 8 + 1
	if e.Renewed > 0 {
		n += 8
	}
	for _, t := range e.Tags {
		n += 2 + len(t)
	}
	return n
}

// putTags writes the block of tags and returns what is left of b.
func (e *Entry) putTags(b []byte) []byte {
	if len(e.Tags) == 0 {
		return b
	}
	n := copy(b, e.Stamp.Epoch[:])
	binary.BigEndian.PutUint64(b[n:], e.Stamp.N)
	b = b[n+8:]
	if e.Renewed > 0 {
		binary.BigEndian.PutUint64(b, e.Renewed)
		b = b[8:]
	}
	b[0] = byte(len(e.Tags))
	b = b[1:]
	for _, t := range e.Tags {
		binary.BigEndian.PutUint16(b, uint16(len(t)))
		b = b[2+copy(b[2:], t):]
	}
	return b
}

var errTagBlock = fmt.Errorf("%w: the entry's tags can't be read", ErrDamaged)

// cutTags reads the block of tags at the start of the payload and takes it off.
// What is allocated is bounded by the bytes that are there.
func (e *Entry) cutTags() error {
	head := 8 + 8 + 1
	if e.Flags&FlagRenewed != 0 {
		head += 8
	}
	b := e.Payload
	if len(b) < head {
		return errTagBlock
	}
	e.Stamp = Stamp{Epoch: Epoch(b[:8]), N: binary.BigEndian.Uint64(b[8:])}
	if e.Flags&FlagRenewed != 0 {
		if e.Renewed = binary.BigEndian.Uint64(b[16:]); e.Renewed == 0 {
			return errTagBlock
		}
	}
	count := int(b[head-1])
	if count == 0 || count > MaxTags {
		return errTagBlock
	}
	e.Tags = make([]string, count)
	b = b[head:]
	for i := range e.Tags {
		if len(b) < 2 {
			return errTagBlock
		}
		n := int(binary.BigEndian.Uint16(b))
		if b = b[2:]; n == 0 || n > MaxTagSize || n > len(b) {
			return errTagBlock
		}
		e.Tags[i] = string(b[:n])
		b = b[n:]
	}
	e.Payload = b
	return nil
}

// A tagRecord is what is known of a tag. The zero record is none: nothing is
// known, and whoever carries the tag is invalid. A record that was evicted must
// lose entries, and never bring one back.
type tagRecord struct {
	epoch   Epoch
	known   bool
	deleted uint64 // entries with an older stamp are invalid
	expired uint64 // entries with an older stamp, and not renewed since, are stale
}

// A tagVerdict is what a record says of an entry that carries its tag.
type tagVerdict byte

const (
	tagHolds tagVerdict = iota
	tagExpired
	tagDeleted
)

func (r tagRecord) judge(e *Entry) tagVerdict {
	switch {
	case !r.known || r.epoch != e.Stamp.Epoch || r.deleted > e.Stamp.N:
		return tagDeleted
	case r.expired > e.goodAt():
		return tagExpired
	}
	return tagHolds
}

// goodAt is the clock from before a fetch that found the value to be good.
func (e *Entry) goodAt() uint64 { return max(e.Stamp.N, e.Renewed) }

// tagged reports whether the reading has to be checked.
func (r *Reading) tagged() bool { return r.Found && len(r.Entry.Tags) > 0 }

// judged takes in what the record of one of the entry's tags says. An entry that
// is invalid counts as none; Seen stays, so that the next acquire can name it.
func (r *Reading) judged(v tagVerdict) {
	switch v {
	case tagDeleted:
		r.Found, r.Entry, r.Age, r.Left = false, Entry{}, 0, 0
	case tagExpired:
		r.Entry.Flags |= FlagExpired
	}
}

// distinct returns the tags without repetitions, in their order.
func distinct(tags []string) []string {
	out := make([]string, 0, len(tags))
	for _, t := range tags {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}
