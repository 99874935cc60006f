package cache

import (
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/vmihailenco/msgpack/v5"
)

// MsgPack stores values as MessagePack, with [github.com/vmihailenco/msgpack/v5]
// and its struct tags. It is the default for all but []byte and string.
//
// A decoded value differs from the encoded one in these ways:
//
//   - Unexported fields, and those tagged `msgpack:"-"`, come back zero.
//   - A time.Time is the same instant to the nanosecond, but in the local zone
//     and without its monotonic part: compare with Equal.
//   - A number in an any comes back with the type of its encoding: int(5) as int8.
//   - Nil maps, slices and pointers stay nil, empty ones stay empty.
//
// Marshal refuses values that cannot be decoded: channels, functions, complex numbers
// and uintptrs; structs without any exported field; values nested deeper than 10,000;
// strings interned with the tag option intern; and structs that embed a pointer to a
// struct (tag it `msgpack:",noinline"`, give it a name, or use [JSON]), which the library
// decodes with a goroutine that never ends. CheckType finds most of this from the type. A
// value that refers to itself must not be stored.
//
// Decoding damaged or hostile bytes costs memory in proportion to their number: all
// lengths are compared with the remaining bytes before the library allocates for them.
// Each byte may become one element of a slice of your type, as with encoding/json. A
// registered extension type must read its payload with ReadFull.
type MsgPack struct{}

// ID implements [Codec].
func (MsgPack) ID() byte { return msgPackID }

// Marshal implements [Codec].
func (MsgPack) Marshal(v any) ([]byte, error) {
	if err := checkMsgPackType(reflect.TypeOf(v)); err != nil {
		return nil, err
	}
	b, err := msgpack.Marshal(v)
	if err != nil {
		// A type with encoding methods on its pointer, like url.URL, must be addressable.
		if p := addressed(v); p != nil {
			b, err = msgpack.Marshal(p)
		}
	}
	if err == nil {
		err = checkMsgPack(b)
	}
	if err != nil {
		return nil, fmt.Errorf("cache: encoding %T as MessagePack: %w", v, err)
	}
	return b, nil
}

// addressed returns a pointer to a copy of v, or nil if v is a pointer already.
func addressed(v any) any {
	if v == nil || reflect.TypeOf(v).Kind() == reflect.Pointer {
		return nil
	}
	p := reflect.New(reflect.TypeOf(v))
	p.Elem().Set(reflect.ValueOf(v))
	return p.Interface()
}

// Unmarshal implements [Codec]. It returns [ErrDamaged] for bytes that are not
// MessagePack, or not the MessagePack of such a value.
func (MsgPack) Unmarshal(data []byte, v any) error {
	if err := checkMsgPackType(reflect.TypeOf(v)); err != nil {
		return err
	}
	return decoding("MessagePack", v, func() error {
		if err := checkMsgPack(data); err != nil {
			return err
		}
		r := &msgPackReader{data: data}
		// Not a pooled decoder: after a damaged value in front of a type's own decoding
		// method, that records all that it reads in every later use.
		if err := msgpack.NewDecoder(r).Decode(v); err != nil {
			return err
		}
		if r.at != len(data) {
			return errTrailing
		}
		return nil
	})
}

// A msgPackReader passes data to the decoder. If the type asks for a map, the decoder reads
// an extension as one, and the extension's payload as the map's length, which
// checkMsgPack has not seen. It reads that length with ReadByte, and payloads with Read.
type msgPackReader struct {
	data    []byte
	at      int
	next    int // position of the next code
	extFrom int // payload of the last extension: up to next
}

func (r *msgPackReader) ReadByte() (byte, error) {
	if r.at >= len(r.data) {
		return 0, io.EOF
	}
	c := r.data[r.at]
	switch {
	case r.at >= r.next:
		code := readCode(r.data[r.at:])
		r.next = r.at + code.head + code.body
		r.extFrom = r.next
		if code.ext {
			r.extFrom = r.at + code.head
		}
	case r.at >= r.extFrom:
		return 0, errExtAsMap
	}
	r.at++
	return c, nil
}

func (r *msgPackReader) UnreadByte() error {
	r.at--
	return nil
}

func (r *msgPackReader) Read(p []byte) (int, error) {
	if r.at >= len(r.data) && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, r.data[r.at:])
	r.at += n
	return n, nil
}

// maxNesting bounds the recursion of decoding, as in encoding/json: an overflow of a
// goroutine's stack ends the process.
const maxNesting = 10_000

var (
	errCutShort = errors.New("a length is larger than the bytes that are left")
	errNesting  = fmt.Errorf("nested deeper than %d", maxNesting)
	errBadCode  = errors.New("a code that MessagePack doesn't have")
	errTrailing = errors.New("bytes are left over")
	errExtAsMap = errors.New("an extension in place of a map")
	errInterned = errors.New("interned strings are not supported")
)

// A msgPackCode is the head of a value.
type msgPackCode struct {
	head  int  // bytes of it, its length field included
	body  int  // bytes of content that follow: a number, string, payload
	items int  // values that follow: elements, or keys and values
	ext   bool // body is an extension's payload; its type is the head's last byte
	ok    bool
}

// readCode reads the code at the start of b, which is not empty. Its length may be wrong.
func readCode(b []byte) msgPackCode {
	c := b[0]
	switch {
	case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3: // small numbers, nil, false, true
		return msgPackCode{head: 1, ok: true}
	case c <= 0x8f: // small map
		return msgPackCode{head: 1, items: 2 * int(c&0x0f), ok: true}
	case c <= 0x9f: // small array
		return msgPackCode{head: 1, items: int(c & 0x0f), ok: true}
	case c <= 0xbf: // short string
		return msgPackCode{head: 1, body: int(c & 0x1f), ok: true}
	case c >= 0xc4 && c <= 0xc6: // bytes
		return withLength(b, 1<<(c-0xc4), 0)
	case c >= 0xc7 && c <= 0xc9: // extension; its type follows the length
		code := withLength(b, 1<<(c-0xc7), 0)
		code.head++
		code.ext = true
		return code
	case c >= 0xca && c <= 0xd3: // floats and integers
		return msgPackCode{head: 1, body: [...]int{4, 8, 1, 2, 4, 8, 1, 2, 4, 8}[c-0xca], ok: true}
	case c >= 0xd4 && c <= 0xd8: // extensions of 1 to 16 bytes
		return msgPackCode{head: 2, body: 1 << (c - 0xd4), ext: true, ok: true}
	case c >= 0xd9 && c <= 0xdb: // strings
		return withLength(b, 1<<(c-0xd9), 0)
	case c == 0xdc, c == 0xdd: // arrays
		return withLength(b, 2<<(c-0xdc), 1)
	case c == 0xde, c == 0xdf: // maps
		return withLength(b, 2<<(c-0xde), 2)
	}
	return msgPackCode{}
}

// withLength reads a length field of 1, 2 or 4 bytes behind the code. It counts values if
// items is positive, that many for each unit, and else bytes.
func withLength(b []byte, size, items int) msgPackCode {
	code := msgPackCode{head: 1 + size, ok: true}
	if len(b) < 1+size {
		return code // longer than b, which the caller checks
	}
	var length uint32
	for _, c := range b[1 : 1+size] {
		length = length<<8 | uint32(c)
	}
	// A Redis string has at most 512 MiB, and more would overflow an int of 32 bits.
	n := int(min(length, 1<<29))
	if code.items = n * items; items == 0 {
		code.body = n
	}
	return code
}

// checkMsgPack compares all lengths with the remaining bytes, before a decoder allocates
// for them. Every value takes at least a byte, so all values that are still owed must fit
// in the remaining bytes: nested arrays cannot each claim all of those.
//
// A type's own encoder may write several values in place of one, so further values are
// accepted here, and the decoder decides.
func checkMsgPack(b []byte) error {
	if len(b) == 0 {
		return errCutShort
	}
	open := make([]int, 0, 16) // values owed by each array and map that is open
	owed := 1                  // their sum, and the first value
	for len(b) > 0 {
		code := readCode(b)
		switch {
		case !code.ok:
			return errBadCode
		case code.head > len(b), code.body > len(b)-code.head:
			return errCutShort
		case code.ext && b[code.head-1] == 0x80:
			return errInterned
		}
		b = b[code.head+code.body:]
		owed = max(0, owed-1) + code.items
		if owed > len(b) {
			return errCutShort
		}
		if len(open) > 0 {
			open[len(open)-1]--
		}
		if code.items > 0 {
			open = append(open, code.items)
		}
		for len(open) > 0 && open[len(open)-1] == 0 {
			open = open[:len(open)-1]
		}
		if len(open) > maxNesting {
			return errNesting
		}
	}
	return nil
}
