package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"
)

// HeaderSize is the length of the header in front of every entry's payload.
const HeaderSize = 40

// entryFormat is the format of the header. Entries of format 1, which had no write
// time, are a miss that the next fill overwrites.
const entryFormat = 2

// MaxTTL is the longest time an entry's header can say: 2^32-1 milliseconds,
// a little over 49 days.
const MaxTTL = math.MaxUint32 * time.Millisecond

// ErrDamaged is returned by [Entry.Parse], [ParseMessage] and the codecs for bytes that
// are not theirs. A store treats a damaged entry as a miss that the next fill overwrites.
var ErrDamaged = errors.New("cache: damaged or foreign bytes")

// Kind tells values, failures and markers apart.
type Kind byte

const (
	// Value is an entry with a value as its payload.
	Value Kind = 1
	// Negative says that the fetch answered "does not exist". It has no payload.
	Negative Kind = 2
	// Bypass marks a key whose values may not be shared, or not be stored: each
	// caller fetches for itself, without a lease, until the marker expires.
	// Varnish calls this hit-for-miss. With [FlagTooLarge] the callers of one
	// process may still share.
	Bypass Kind = 3
)

func (k Kind) String() string {
	switch k {
	case Value:
		return "value"
	case Negative:
		return "negative"
	case Bypass:
		return "bypass"
	}
	return fmt.Sprintf("kind(%d)", byte(k))
}

// Flags are the bits of the header's flag byte.
type Flags byte

const (
	// FlagCompressed says that the payload was compressed after encoding.
	FlagCompressed Flags = 1 << 0
	// FlagExpired says that the entry was marked stale by hand. expire.lua sets
	// it in place.
	FlagExpired Flags = 1 << 1
	// FlagTooLarge, on a Bypass, says that the value is not private, only larger
	// than may be stored.
	FlagTooLarge Flags = 1 << 2
	// FlagTagged says that the entry carries tags, in front of its payload.
	// [Entry.Encode] sets it, or not, by Entry.Tags.
	FlagTagged Flags = 1 << 3
	// FlagRenewed says that Renewed is behind the stamp. [Entry.Encode] sets it, or
	// not, by Entry.Renewed.
	FlagRenewed Flags = 1 << 4
	// FlagIfError says that the entry, once stale, may only stand in for an error.
	FlagIfError Flags = 1 << 5
	// FlagKept says that the entry, once stale, is never served. The next fetch may
	// validate it.
	FlagKept Flags = 1 << 6
)

// An Entry is stored under a key. Durations are whole milliseconds, at most
// MaxTTL.
type Entry struct {
	Version  Token // the lease or the change that wrote the entry
	Kind     Kind
	Codec    byte // [Codec.ID] of the payload's codec
	Flags    Flags
	TTL      time.Duration // the entry is gone after this
	FreshFor time.Duration // the entry is stale after this
	Took     time.Duration // how long the fetch took
	Written  Instant       // when the entry was written; the store sets it
	Tags     []string      // at most MaxTags; a Bypass has none
	Stamp    Stamp         // from before the fetch, if there are tags
	Renewed  uint64        // Stamp.N from before the fetch that found the value still good; 0: none has
	Payload  []byte
}

// An Instant is a reading of the store's own clock in microseconds. Instants of one
// server compare; no application clock ever makes one. Zero is none.
type Instant uint64

// Encode returns the entry as it is stored. Layout, big-endian:
//
//	0-15  version    16 format, 2    17 kind    18 codec    19 flags
//	20-23 TTL, ms    24-27 fresh for, ms    28-31 fetch took, ms
//	32-35 written, seconds    36-39 and microseconds    40- payload
//
// With tags, in front of the payload:
//
//	8 bytes of epoch    8 of stamp    8 of renewed, with its flag
//	1: number of tags    for each: 2 of length, the tag
//
// Durations are cut to whole milliseconds and to the range of their fields.
func (e *Entry) Encode() []byte {
	b := make([]byte, HeaderSize+e.tagsSize()+len(e.Payload))
	copy(b, e.Version[:])
	flags := e.Flags &^ (FlagTagged | FlagRenewed)
	if len(e.Tags) > 0 {
		flags |= FlagTagged
		if e.Renewed > 0 {
			flags |= FlagRenewed
		}
	}
	b[16], b[17], b[18], b[19] = entryFormat, byte(e.Kind), e.Codec, byte(flags)
	binary.BigEndian.PutUint32(b[20:], Millis(e.TTL))
	binary.BigEndian.PutUint32(b[24:], Millis(e.FreshFor))
	binary.BigEndian.PutUint32(b[28:], Millis(e.Took))
	binary.BigEndian.PutUint32(b[32:], uint32(e.Written/1e6))
	binary.BigEndian.PutUint32(b[36:], uint32(e.Written%1e6))
	copy(e.putTags(b[HeaderSize:]), e.Payload)
	return b
}

// Parse reads the bytes that [Entry.Encode] wrote into a zero entry, which keeps them. It
// returns [ErrDamaged] for any others, and then the entry holds nothing of use. The only
// lengths in the bytes are those of tags; a false one makes it allocate nothing.
func (e *Entry) Parse(b []byte) error {
	if len(b) < HeaderSize {
		return fmt.Errorf("%w: an entry of %d bytes is shorter than its header", ErrDamaged, len(b))
	}
	if b[16] != entryFormat {
		return fmt.Errorf("%w: entry format %d is unknown", ErrDamaged, b[16])
	}
	e.Version = Token(b[:16])
	e.Kind, e.Codec, e.Flags = Kind(b[17]), b[18], Flags(b[19])
	e.TTL = time.Duration(binary.BigEndian.Uint32(b[20:])) * time.Millisecond
	e.FreshFor = time.Duration(binary.BigEndian.Uint32(b[24:])) * time.Millisecond
	e.Took = time.Duration(binary.BigEndian.Uint32(b[28:])) * time.Millisecond
	seconds, micros := Instant(binary.BigEndian.Uint32(b[32:])), Instant(binary.BigEndian.Uint32(b[36:]))
	e.Written = seconds*1e6 + micros
	e.Payload = b[HeaderSize:]
	if micros >= 1e6 {
		return fmt.Errorf("%w: a second of %d microseconds", ErrDamaged, micros)
	}
	if e.Kind < Value || e.Kind > Bypass {
		return fmt.Errorf("%w: entry of unknown %v", ErrDamaged, e.Kind)
	}
	if e.Version.IsZero() {
		return fmt.Errorf("%w: entry without a version", ErrDamaged)
	}
	if e.Flags&FlagTagged != 0 {
		if e.Kind == Bypass {
			return fmt.Errorf("%w: a bypass with tags", ErrDamaged)
		}
		return e.cutTags()
	}
	if e.Flags&FlagRenewed != 0 {
		return fmt.Errorf("%w: a stamp of renewal without tags", ErrDamaged)
	}
	return nil
}

// Millis is a duration as a field of the header holds it.
func Millis(d time.Duration) uint32 {
	return uint32(min(max(d, 0), MaxTTL) / time.Millisecond)
}

// A Reading is the state of a key's entry at one time. It may be shared: treat it as
// read-only.
type Reading struct {
	Entry Entry         // meaningful only if Found
	Age   time.Duration // since the entry was written, at least 0
	Left  time.Duration // until its TTL ends, at least 0

	// Found is false where nothing is stored, and where the stored bytes can't be read;
	// Damage tells the two apart.
	Found  bool
	Damage error // wraps ErrDamaged, or nil

	// Seen is the first bytes stored, 16 at the most, even where they can't be read: the
	// acquire that follows names them, or a damaged entry could never be overwritten. Empty
	// means that nothing is stored.
	Seen string
}

// Parse takes in the bytes stored under a key, which the zero reading keeps, as of the
// given time.
func (r *Reading) Parse(b []byte, now Instant) {
	if len(b) == 0 {
		return
	}
	r.Seen = unsafe.String(unsafe.SliceData(b), min(len(b), TokenSize)) // headers don't change
	if r.Damage = r.Entry.Parse(b); r.Damage != nil {
		r.Entry = Entry{}
		return
	}
	r.Found = true
	age := time.Duration(0)
	if now > r.Entry.Written { // clocks of servers may differ after a failover
		age = time.Duration(now-r.Entry.Written) * time.Microsecond
	}
	r.SetAge(age)
}

// SetAge sets how old the entry is.
func (r *Reading) SetAge(age time.Duration) {
	r.Age = max(0, age)
	r.Left = max(0, r.Entry.TTL-r.Age)
}

// Keep returns a copy of a reading that is only lent. The payload is not copied.
func (r *Reading) Keep() *Reading {
	kept := *r
	return &kept
}

// Fresh reports whether the entry may be served without asking anybody.
func (r *Reading) Fresh() bool {
	return r.Found && r.Entry.Flags&FlagExpired == 0 && r.Age < r.Entry.FreshFor
}
