package redisstore_test

import (
	"testing"

	"github.com/stampedeguard/stampede/internal/redisstore"
)

// The replies of the lock scripts may be those of a foreign script, or of a proxy.
func FuzzLockReplies(f *testing.F) {
	f.Add("granted", int64(1), "0123456789abcdef", int64(3))
	f.Add("held", int64(0), "0123456789abcdef", int64(-1))
	f.Add("foreign", int64(0), "key", int64(0))
	f.Fuzz(func(_ *testing.T, word string, a int64, text string, b int64) {
		for _, reply := range []any{
			nil, word, a,
			[]any{},
			[]any{word},
			[]any{word, a, b, a, text, text},
			[]any{word, text, a, b},
			[]any{a, b, word, a, text, b, a, text, a, b},
			[]any{a, b, word, a, text, b, a, text},
		} {
			redisstore.ParseLockReplies(reply)
		}
	})
}
