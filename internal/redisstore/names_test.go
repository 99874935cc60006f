package redisstore_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stampedeguard/stampede/internal/redisstore"
	"github.com/stampedeguard/stampede/internal/store"
)

// FuzzKeyNames checks that all names of a key lie in one slot, and that no two names of two
// keys are the same.
func FuzzKeyNames(f *testing.F) {
	aToken := store.Token{0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0xfa, 0xf9, 0xf8}
	for _, pair := range [][2]string{
		{"", "%"},
		{"}", "%}"},
		{"{}", "{"},
		{"a", "a}:lease"},
		{"a:lease", "a"},
		{"%", "%%"},
		{"a}", "a"},
		{strings.Repeat("k", 513), "%#" + strings.Repeat("0", 64)},
		{"a\nb", "a\x00b"},
		{"\xff", "\xfe"},
	} {
		f.Add(pair[0], pair[1], aToken[:])
	}
	f.Fuzz(func(t *testing.T, a, b string, token []byte) {
		var tok store.Token
		copy(tok[:], token)
		namesA, namesB := redisstore.KeyNames("ns", a, tok), redisstore.KeyNames("ns", b, tok)
		for i, name := range namesA {
			if clusterSlot(name) != clusterSlot(namesA[0]) {
				t.Errorf("%q and %q lie in slots %d and %d", namesA[0], name, clusterSlot(namesA[0]), clusterSlot(name))
			}
			if slices.Contains(namesA[:i], name) {
				t.Errorf("two names of %q are %q", a, name)
			}
			if a != b && slices.Contains(namesB, name) {
				t.Errorf("%q and %q share the name %q", a, b, name)
			}
		}
	})
}

// clusterSlot is the slot of a key by the Redis Cluster specification, section "Keys
// distribution model": CRC16, XMODEM, of the hash tag.
func clusterSlot(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if end := strings.IndexByte(key[open+1:], '}'); end > 0 {
			key = key[open+1 : open+1+end]
		}
	}
	var crc uint16
	for _, c := range []byte(key) {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

func TestClusterSlotIsThatOfTheSpecification(t *testing.T) {
	for key, want := range map[string]uint16{"123456789": 0x31c3 % 16384, "foo": 12182, "{foo}bar": 12182, "a{foo}{bar}": 12182, "{}foo": clusterSlot("{}foo"), "somekey": 11058} {
		if got := clusterSlot(key); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
}
