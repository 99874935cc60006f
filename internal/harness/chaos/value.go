package chaos

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A value is text that tells its origin: "key|proc|seq|at|caller|f|length|",
// padded to its length with a pattern, so that a value that was cut off, or put
// together of two, is noticed.

const pattern = "0123456789abcdef"

func encodeValue(o *Origin, size int) string {
	how := "f"
	if o.Set {
		how = "s"
	}
	head := fmt.Sprintf("%s|%d|%d|%d|%d|%s|%d|", o.Key, o.Proc, o.Seq, o.At, o.Caller, how, size)
	return head + padding(size-len(head))
}

func padding(n int) string {
	if n <= 0 {
		return ""
	}
	return strings.Repeat(pattern, n/len(pattern)+1)[:n]
}

var errDamaged = errors.New("chaos: a damaged value")

func decodeValue(v string) (*Origin, error) {
	parts := strings.SplitN(v, "|", 8)
	if len(parts) != 8 {
		return nil, fmt.Errorf("%w: %.80q", errDamaged, v)
	}
	var n [5]int64
	for i, at := range []int{1, 2, 3, 4, 6} {
		var err error
		if n[i], err = strconv.ParseInt(parts[at], 10, 64); err != nil {
			return nil, fmt.Errorf("%w: %.80q", errDamaged, v)
		}
	}
	o := &Origin{
		Key: parts[0], Proc: int(n[0]), Seq: uint64(n[1]), At: Stamp(n[2]), Caller: uint64(n[3]), Set: parts[5] == "s",
	}
	if v != encodeValue(o, int(n[4])) {
		return nil, fmt.Errorf("%w: %d bytes of %d, %.80q", errDamaged, len(v), n[4], v)
	}
	return o, nil
}
