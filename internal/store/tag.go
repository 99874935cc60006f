package store

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"time"
)

// Bounds of tags, as users of a store name them.
const (
	// MaxTags is how many tags one entry may carry.
	MaxTags = 16
	// MaxTagSize is the longest tag, in bytes. The shortest has one.
	MaxTagSize = 512
)

const (
	// TagWindow is how long a tag's record is kept at least after the tag was changed: a
	// fetch that was under way then must find it. A fetch that took longer is not stored
	// with tags.
	TagWindow = time.Hour
	// TagSlack is how much longer than the entries that carry its tag a record is kept: they
	// are stored a little after it was written.
	TagSlack = time.Minute
)

// An Epoch names a clock of tags: 8 random bytes, drawn when there was none.
type Epoch [8]byte

// A Stamp is a reading of the clock that every change of a tag advances. An entry that
// carries tags has the stamp from before its fetch started: a tag that was deleted at a
// higher one makes it invalid.
type Stamp struct {
	Epoch Epoch
	N     uint64
	Taken time.Time // before it was asked for, by this process; zero if it was read from an entry
}

// Buckets is how many buckets the clock of tags remembers changes by: so many that a fetch
// with an unrecorded tag is seldom refused for another tag's change.
const Buckets = 256

// A Bucket is one of those, to which a tag belongs by its hash: FNV-1a, 64 bits.
type Bucket byte

// BucketOf returns the bucket of a tag.
func BucketOf(tag string) Bucket {
	h := fnv.New64a()
	_, _ = h.Write([]byte(tag))
	return Bucket(h.Sum64() % Buckets)
}

// BucketsOf returns the buckets of the tags, each once.
func BucketsOf(tags []string) []Bucket {
	var all []Bucket
	for _, t := range tags {
		if b := BucketOf(t); !slices.Contains(all, b) {
			all = append(all, b)
		}
	}
	return all
}

// Field is the bucket's name in the clock.
func (b Bucket) Field() string { return fmt.Sprintf("%02x", byte(b)) }

// CheckTags reports why an entry can't carry these tags, if so.
func CheckTags(tags []string) error {
	if len(tags) > MaxTags {
		return fmt.Errorf("%w: %d tags, at most %d are allowed", ErrRefused, len(tags), MaxTags)
	}
	return CheckTagSizes(tags)
}

// CheckTagSizes reports why these can't be tags, if so.
func CheckTagSizes(tags []string) error {
	for _, t := range tags {
		if len(t) == 0 || len(t) > MaxTagSize {
			return fmt.Errorf("%w: a tag of %d bytes, 1 to %d are allowed", ErrRefused, len(t), MaxTagSize)
		}
	}
	return nil
}

// Storable reports why an entry can't be stored with its tags, if so.
func (e *Entry) Storable() error {
	if e.Kind == Bypass && len(e.Tags) > 0 {
		return fmt.Errorf("%w: a bypass carries no tags", ErrRefused)
	}
	return CheckTags(e.Tags)
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

// putTags writes the block of tags and returns the rest of b.
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
// It allocates no more than the bytes account for.
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

// A TagRecord tells the last changes of a tag. The zero record is unknown: all entries that
// carry the tag are invalid. An evicted record must lose entries, and never bring one
// back.
type TagRecord struct {
	Known   bool
	Epoch   Epoch
	Deleted uint64 // entries with an older stamp are invalid
	Expired uint64 // entries with an older stamp, and not renewed since, are stale
}

// A TagVerdict is the judgement of a record on an entry that carries its tag. The highest
// of several counts.
type TagVerdict byte

const (
	TagHolds TagVerdict = iota
	TagExpired
	TagDeleted
)

// Judge judges an entry that carries the tag.
func (r TagRecord) Judge(e *Entry) TagVerdict {
	switch {
	case !r.Known || r.Epoch != e.Stamp.Epoch || r.Deleted > e.Stamp.N:
		return TagDeleted
	case r.Expired > e.GoodAt():
		return TagExpired
	}
	return TagHolds
}

// GoodAt is the stamp from before a fetch that found the value to be good.
func (e *Entry) GoodAt() uint64 { return max(e.Stamp.N, e.Renewed) }

// Tagged reports whether the reading's tags have to be checked.
func (r *Reading) Tagged() bool { return r.Found && len(r.Entry.Tags) > 0 }

// Heed takes in the verdict on the entry's tags. An invalid entry counts as none; Seen
// stays, so that the next acquire can name it.
func (r *Reading) Heed(v TagVerdict) {
	switch v {
	case TagDeleted:
		r.Found, r.Entry, r.Age, r.Left = false, Entry{}, 0, 0
	case TagExpired:
		r.Entry.Flags |= FlagExpired
	}
}

// Distinct returns the tags without repetitions, in their order.
func Distinct(tags []string) []string {
	out := make([]string, 0, len(tags))
	for _, t := range tags {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}
