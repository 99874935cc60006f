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
const HeaderSize = 32

// entryFormat is the only header format there is so far.
const entryFormat = 1

// MaxTTL is the longest time an entry's header can say: 2^32-1 milliseconds,
// a little over 49 days.
const MaxTTL = math.MaxUint32 * time.Millisecond

// ErrDamaged is what [ParseEntry], [ParseMessage] and the codecs return for
// bytes that are not theirs. A store treats a damaged entry as a miss that the
// next fill overwrites.
var ErrDamaged = errors.New("cache: damaged or foreign bytes")

// Kind says what an entry stands for.
type Kind byte

const (
	// Value is an entry whose payload is a value.
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
	// FlagKept says that the entry, once stale, is never served: it is kept for
	// whoever fetches anew, to be validated.
	FlagKept Flags = 1 << 6
)

// An Entry is what a store keeps under a key. No field is a point in time:
// Redis's own key expiry measures all durations, so that no two machines have
// to agree on the time.
type Entry struct {
	Version  Token         // the lease or Set that wrote the entry
	Kind     Kind          //
	Codec    byte          // [Codec.ID] of the payload's codec
	Flags    Flags         //
	TTL      time.Duration // hard TTL: gone after this; in whole milliseconds, at most MaxTTL
	FreshFor time.Duration // stale after this; in whole milliseconds, at most MaxTTL
	Took     time.Duration // how long the fetch took; in whole milliseconds, capped to MaxTTL
	Tags     []string      // at most MaxTags; a Bypass has none
	Stamp    Stamp         // from before the fetch started, if there are tags
	Renewed  uint64        // Stamp.N from before the fetch that found the value to be good still; 0: none has
	Payload  []byte
}

// Encode returns the header and payload as they are stored. Layout, big-endian:
//
//	0-15  version    16 format, 1    17 kind    18 codec    19 flags
//	20-23 hard TTL, ms    24-27 fresh for, ms    28-31 fetch took, ms    32- payload
//
// With tags, in front of the payload:
//
//	8 bytes of epoch    8 of stamp    8 of renewed, with its flag
//	1: number of tags    for each: 2 of length, the tag
//
// Durations are cut to whole milliseconds and to what the fields can hold.
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
	binary.BigEndian.PutUint32(b[20:], millis(e.TTL))
	binary.BigEndian.PutUint32(b[24:], millis(e.FreshFor))
	binary.BigEndian.PutUint32(b[28:], millis(e.Took))
	copy(e.putTags(b[HeaderSize:]), e.Payload)
	return b
}

// ParseEntry reads what [Entry.Encode] wrote. The payload is not copied. It
// returns [ErrDamaged] for anything else. The only lengths that are read from the
// bytes are those of tags; nothing is allocated for a lie.
func ParseEntry(b []byte) (Entry, error) {
	var e Entry
	if err := e.parse(b); err != nil {
		return Entry{}, err
	}
	return e, nil
}

// parse is ParseEntry into a zero entry; after an error there may be anything in it.
func (e *Entry) parse(b []byte) error {
	if len(b) < HeaderSize {
		return fmt.Errorf("%w: entry of %d bytes is shorter than its header", ErrDamaged, len(b))
	}
	if b[16] != entryFormat {
		return fmt.Errorf("%w: entry format %d is unknown", ErrDamaged, b[16])
	}
	e.Version = Token(b[:16])
	e.Kind, e.Codec, e.Flags = Kind(b[17]), b[18], Flags(b[19])
	e.TTL = time.Duration(ttlOf(b)) * time.Millisecond
	e.FreshFor = time.Duration(binary.BigEndian.Uint32(b[24:])) * time.Millisecond
	e.Took = time.Duration(binary.BigEndian.Uint32(b[28:])) * time.Millisecond
	e.Payload = b[HeaderSize:]
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

func millis(d time.Duration) uint32 {
	return uint32(min(max(d, 0), MaxTTL) / time.Millisecond)
}

// ttlOf reads the hard TTL, in milliseconds, from an entry's header.
func ttlOf(b []byte) uint32 { return binary.BigEndian.Uint32(b[20:]) }

// A Reading is what a store answers when it is asked for an entry. It may be
// shared by several callers: treat it as read-only.
type Reading struct {
	Entry Entry         // meaningful only if Found
	Age   time.Duration // time since the entry was written, at least 0
	Left  time.Duration // until the hard TTL ends, at least 0

	// Found is false where nothing is stored and where what is stored can't be
	// read; Damage tells the two apart.
	Found  bool
	Damage error // wraps ErrDamaged, or nil

	// Seen is the first bytes of what is stored, 16 at the most, even where they
	// can't be read: the acquire that follows names them (see Ask.Seen), or
	// nobody could ever overwrite a damaged entry. Empty means nothing is stored.
	Seen string

	memo memo
}

// newReading judges the bytes stored under a key and the time they have left
// (pttl, in milliseconds as PTTL answers: -2 no key, -1 no expiry). It keeps b.
func newReading(b []byte, pttl int64) *Reading {
	r := &Reading{}
	// -2: the key expired between the GET and the PTTL.
	if len(b) > 0 && pttl != -2 && r.parse(b) {
		r.setLeft(pttl)
	}
	return r
}

// parse judges the bytes stored under a key, which it keeps, and answers whether
// they are an entry, whose age is to be set. r is zero.
func (r *Reading) parse(b []byte) bool {
	r.Seen = unsafe.String(unsafe.SliceData(b), min(len(b), TokenSize)) // headers don't change
	if r.Damage = r.Entry.parse(b); r.Damage != nil {
		r.Entry = Entry{}
	}
	r.Found = r.Damage == nil
	return r.Found
}

func (r *Reading) setLeft(pttl int64) {
	if pttl < 0 {
		// Somebody removed the expiry (PERSIST, or a foreign write). The age is
		// unknown, so the entry counts as old as it can be: stale.
		r.Age = r.Entry.TTL
		return
	}
	r.Left = time.Duration(pttl) * time.Millisecond
	r.Age = max(0, r.Entry.TTL-r.Left)
}

// lay sets the age right of what was told by an answer that took longer than a call
// may: this process was late (see noticedLate), and the answer has been lying here
// while the entry grew older.
func (r *Reading) lay(took, timeout time.Duration) {
	if r.Found && took > timeout {
		r.setAge(r.Age + took)
	}
}

func (r *Reading) setAge(age time.Duration) {
	r.Age = max(0, age)
	r.Left = max(0, r.Entry.TTL-r.Age)
}

// Keep returns a copy of a reading that is only lent (see [Store.ReadMany]). The
// payload is not copied.
func (r *Reading) Keep() *Reading {
	return &Reading{Entry: r.Entry, Age: r.Age, Left: r.Left, Found: r.Found, Damage: r.Damage, Seen: r.Seen}
}

// Fresh reports whether the entry may be served without asking anybody.
func (r *Reading) Fresh() bool {
	return r.Found && r.Entry.Flags&FlagExpired == 0 && r.Age < r.Entry.FreshFor
}
