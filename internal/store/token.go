package store

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
)

// TokenSize is the length of a [Token] in bytes.
const TokenSize = 16

// A Token names one attempt to hold a lease, and is the version of the entry
// that this lease fills. Its first 8 bytes name the process, the last 8 are a
// counter of that process. The zero Token means "none".
//
// A token is sent in one acquire only. A token for each client instead of for
// each attempt would let an old fetch overwrite a newer one.
type Token [TokenSize]byte

// Process names a process for as long as its store is open: 8 random bytes,
// drawn when the store is made.
type Process [8]byte

// Process is the process that drew the token.
func (t Token) Process() Process { return Process(t[:8]) }

// IsZero reports whether t is "none".
func (t Token) IsZero() bool { return t == Token{} }

// String is the token in hexadecimal, as it stands in key names and logs.
func (t Token) String() string { return hex.EncodeToString(t[:]) }

// String is the process in hexadecimal, as it stands in channel names.
func (p Process) String() string { return hex.EncodeToString(p[:]) }

// A Minter draws the tokens of one process. It is safe for concurrent use.
type Minter struct {
	process Process
	counter atomic.Uint64
}

// NewMinter returns a minter for a new, random process name.
func NewMinter() *Minter {
	m := &Minter{}
	rand.Read(m.process[:]) // never fails (crypto/rand since Go 1.24)
	return m
}

// Process is the name that every token of m starts with.
func (m *Minter) Process() Process { return m.process }

// Token returns a token that m has not returned before.
func (m *Minter) Token() Token {
	var t Token
	copy(t[:8], m.process[:])
	binary.BigEndian.PutUint64(t[8:], m.counter.Add(1))
	return t
}
