package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// maxNesting is how deep a value may be nested, as in encoding/json: decoding
// recurses, and a goroutine whose stack overflows ends the process.
const maxNesting = 10_000

var (
	errCutShort = errors.New("a length is larger than the bytes that are left")
	errNesting  = fmt.Errorf("nested deeper than %d", maxNesting)
	errBadCode  = errors.New("a code that MessagePack doesn't have")
	errInterned = errors.New("interned strings are not supported")
)

// A msgPackCode is what stands in front of a value.
type msgPackCode struct {
	head  int  // bytes of it, its length field included
	body  int  // bytes of content that follow: a number, string, payload
	items int  // values that follow: elements, or keys and values
	ext   bool // body is an extension's payload; its type is the head's last byte
	ok    bool
}

// readCode reads the code that b, which isn't empty, begins with. Its length
// may be a lie.
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
		return withLength(b, 1<<(c-0xc4), func(n int) msgPackCode { return msgPackCode{body: n} })
	case c >= 0xc7 && c <= 0xc9: // extension; its type follows the length
		code := withLength(b, 1<<(c-0xc7), func(n int) msgPackCode { return msgPackCode{body: n, ext: true} })
		code.head++
		return code
	case c >= 0xca && c <= 0xd3: // floats and integers
		return msgPackCode{head: 1, body: [...]int{4, 8, 1, 2, 4, 8, 1, 2, 4, 8}[c-0xca], ok: true}
	case c >= 0xd4 && c <= 0xd8: // extensions of 1 to 16 bytes
		return msgPackCode{head: 2, body: 1 << (c - 0xd4), ext: true, ok: true}
	case c >= 0xd9 && c <= 0xdb: // strings
		return withLength(b, 1<<(c-0xd9), func(n int) msgPackCode { return msgPackCode{body: n} })
	case c == 0xdc, c == 0xdd: // arrays
		return withLength(b, 2<<(c-0xdc), func(n int) msgPackCode { return msgPackCode{items: n} })
	case c == 0xde, c == 0xdf: // maps
		return withLength(b, 2<<(c-0xde), func(n int) msgPackCode { return msgPackCode{items: 2 * n} })
	}
	return msgPackCode{}
}

// withLength reads a length field of 1, 2 or 4 bytes behind the code.
func withLength(b []byte, size int, make func(int) msgPackCode) msgPackCode {
	if len(b) < 1+size {
		return msgPackCode{head: 1 + size, ok: true} // more than there is: found out by the caller
	}
	var n int
	switch size {
	case 1:
		n = int(b[1])
	case 2:
		n = int(binary.BigEndian.Uint16(b[1:]))
	default:
		// Redis holds no string above 512 MiB: more is a lie, and would overflow
		// an int of 32 bits.
		n = int(min(binary.BigEndian.Uint32(b[1:]), 1<<29))
	}
	code := make(n)
	code.head, code.ok = 1+size, true
	return code
}

// checkMsgPack walks over MessagePack and compares what lengths promise with
// what is there, before anything is allocated for them. Every value takes at
// least a byte, so all values that are still owed must fit in the bytes that
// are left: nested arrays can't each claim all of those.
//
// A type's own encoder may have written several values where one is owed, so
// values beyond the first are let pass; the decoder has the last word.
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
