package lock_test

import (
	"testing"

	"github.com/stampedeguard/stampede/lock"
)

func FuzzParseID(f *testing.F) {
	f.Add("00112233445566778899aabbccddeeff")
	f.Add("")
	f.Add("xyz")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := lock.ParseID(s)
		if err != nil {
			return
		}
		if again, err := lock.ParseID(id.String()); err != nil || again != id {
			t.Errorf("%q is %v, which is %v (%v)", s, id, again, err)
		}
	})
}

func FuzzRecordOfFile(f *testing.F) {
	f.Add([]byte(`{"name":"\"n\"","fence":7,"attempt":1,"holders":[{"id":"00112233445566778899aabbccddeeff","process":"0011223344556677","ends":1}]}`))
	f.Add([]byte(""))
	f.Add([]byte("null"))
	f.Add([]byte(`{"holders":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, holders, err := lock.ParseRecord(b); err == nil && len(b) == 0 && holders > 0 {
			t.Error("an empty file has holders")
		}
	})
}

func FuzzServerInfo(f *testing.F) {
	f.Add("# Server\r\nrun_id:abc\r\nuptime_in_seconds:12\r\n")
	f.Fuzz(func(t *testing.T, s string) {
		_, _ = lock.ParseInfo(s)
	})
}
