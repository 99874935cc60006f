package chaos_test

import (
	"strings"
	"testing"

	"github.com/stampedeguard/stampede/internal/harness/chaos"
)

func TestValueTellsItsOrigin(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 100 << 10} {
		want := chaos.Origin{Key: "hot-3", Proc: 4, Seq: 17, At: 1234567890, Caller: 99, Set: size == 0}
		v := chaos.EncodeValue(&want, size)
		if size > 0 && len(v) != size {
			t.Errorf("%d bytes, want %d", len(v), size)
		}
		got, err := chaos.DecodeValue(v)
		if err != nil || *got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
}

func TestDamagedValueIsNoticed(t *testing.T) {
	t.Parallel()
	v := chaos.EncodeValue(&chaos.Origin{Key: "large-1", Proc: 1, Seq: 2, At: 3}, 1000)
	for name, damaged := range map[string]string{
		"empty": "", "cut off": v[:900], "too long": v + "0",
		"another's end": v[:500] + strings.Repeat("x", 500), "no number": strings.Replace(v, "|1|", "|one|", 1),
	} {
		if o, err := chaos.DecodeValue(damaged); err == nil {
			t.Errorf("%s: %+v, want an error", name, o)
		}
	}
}
