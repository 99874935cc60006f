package linear

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/stampedeguard/stampede/guard"
)

// Kind says which call an Op is.
type Kind byte

const (
	Get Kind = iota + 1
	Set
	Delete
	// DeleteTag is a Delete of each key with values that carry the tag; see the model.
	DeleteTag
)

// FromBatch is the Source of a Get that was one key of a GetMany, which doesn't
// say where a value came from.
const FromBatch guard.Source = 100

// An Op is one call of a guard, as the process saw it that made it. Instants are
// nanoseconds of a clock that all processes share.
type Op struct {
	Kind   Kind
	Failed bool         // it returned an error: a Set or Delete may be carried out all the same
	Source guard.Source // of a Get
	Key    uint32
	Call   int64
	Return int64
	Value  Value // returned by a Get or given to a Set
}

// A Value tells its origin to the check: whether a fetch or a Set
// brought it forth, and when that began. So the calls of a process before it was
// killed are known from the values that the others got.
type Value struct {
	Set bool
	At  int64  // when the fetch started or Set was called
	ID  uint64 // unique
}

func (v Value) String() string {
	kind := "f"
	if v.Set {
		kind = "s"
	}
	return fmt.Sprintf("%s%016x%016x", kind, v.At, v.ID)
}

// parseValue is the inverse of String.
func parseValue(s string) (Value, error) {
	if len(s) != 33 || s[0] != 'f' && s[0] != 's' {
		return Value{}, fmt.Errorf("linear: no value of ours: %q", s)
	}
	at, err := strconv.ParseInt(s[1:17], 16, 64)
	if err != nil {
		return Value{}, fmt.Errorf("linear: no value of ours: %q", s)
	}
	id, err := strconv.ParseUint(s[17:], 16, 64)
	if err != nil {
		return Value{}, fmt.Errorf("linear: no value of ours: %q", s)
	}
	return Value{Set: s[0] == 's', At: at, ID: id}, nil
}

// A record is how an Op travels from a child to its parent: so short that a pipe
// takes it whole or not at all, even from a process that is killed.
const recordSize = 40

// The reports of a child besides Ops.
const (
	opened   Kind = 100 // the guard is open
	finished Kind = 101 // a Load has been carried out
)

func (o *Op) record() []byte {
	b := make([]byte, recordSize)
	b[0] = byte(o.Kind)
	if o.Failed {
		b[1] |= 1
	}
	if o.Value.Set {
		b[1] |= 2
	}
	b[2] = byte(o.Source)
	binary.BigEndian.PutUint32(b[4:], o.Key)
	binary.BigEndian.PutUint64(b[8:], uint64(o.Call))
	binary.BigEndian.PutUint64(b[16:], uint64(o.Return))
	binary.BigEndian.PutUint64(b[24:], uint64(o.Value.At))
	binary.BigEndian.PutUint64(b[32:], o.Value.ID)
	return b
}

func parseRecord(b []byte) Op {
	return Op{
		Kind: Kind(b[0]), Failed: b[1]&1 != 0, Source: guard.Source(b[2]),
		Key:    binary.BigEndian.Uint32(b[4:]),
		Call:   int64(binary.BigEndian.Uint64(b[8:])),
		Return: int64(binary.BigEndian.Uint64(b[16:])),
		Value: Value{
			Set: b[1]&2 != 0,
			At:  int64(binary.BigEndian.Uint64(b[24:])),
			ID:  binary.BigEndian.Uint64(b[32:]),
		},
	}
}
