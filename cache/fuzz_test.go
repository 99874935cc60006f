package cache_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

var aToken = cache.Token{0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0xfa, 0xf9, 0xf8}

// goldenEntries are the header as other versions and other languages know it:
// a change here is a new format.
var goldenEntries = []struct {
	name  string
	entry cache.Entry
	hex   string
}{
	{
		"value",
		cache.Entry{
			Version: aToken, Kind: cache.Value, Codec: 2, Flags: cache.FlagCompressed,
			TTL: time.Hour, FreshFor: time.Minute, Took: 1500 * time.Millisecond, Payload: []byte("ab\x00"),
		},
		"0102030405060708fffefdfcfbfaf9f8" + "01" + "01" + "02" + "01" + "0036ee80" + "0000ea60" + "000005dc" + "616200",
	},
	{
		"negative",
		cache.Entry{Version: aToken, Kind: cache.Negative, TTL: time.Millisecond},
		"0102030405060708fffefdfcfbfaf9f8" + "01" + "02" + "00" + "00" + "00000001" + "00000000" + "00000000",
	},
	{
		"bypass",
		cache.Entry{Version: aToken, Kind: cache.Bypass, Codec: 255, Flags: cache.FlagExpired | cache.FlagTooLarge, TTL: cache.MaxTTL, FreshFor: cache.MaxTTL, Took: cache.MaxTTL},
		"0102030405060708fffefdfcfbfaf9f8" + "01" + "03" + "ff" + "06" + "ffffffff" + "ffffffff" + "ffffffff",
	},
	{
		"tagged",
		cache.Entry{
			Version: aToken, Kind: cache.Value, Codec: 1, Flags: cache.FlagTagged, TTL: time.Second, FreshFor: time.Second,
			Tags: []string{"g:ab", "}"}, Stamp: cache.Stamp{Epoch: cache.Epoch{1, 2, 3, 4, 5, 6, 7, 0xff}, N: 258}, Payload: []byte("v"),
		},
		"0102030405060708fffefdfcfbfaf9f8" + "01" + "01" + "01" + "08" + "000003e8" + "000003e8" + "00000000" +
			"01020304050607ff" + "0000000000000102" + "02" + "0004" + "673a6162" + "0001" + "7d" + "76",
	},
	{
		"renewed",
		cache.Entry{
			Version: aToken, Kind: cache.Value, Codec: 1, Flags: cache.FlagTagged | cache.FlagRenewed, TTL: time.Second, FreshFor: time.Second,
			Tags: []string{"t"}, Stamp: cache.Stamp{Epoch: cache.Epoch{1, 2, 3, 4, 5, 6, 7, 0xff}, N: 258}, Renewed: 259, Payload: []byte("v"),
		},
		"0102030405060708fffefdfcfbfaf9f8" + "01" + "01" + "01" + "18" + "000003e8" + "000003e8" + "00000000" +
			"01020304050607ff" + "0000000000000102" + "0000000000000103" + "01" + "0001" + "74" + "76",
	},
}

func TestEntryHasThisLayout(t *testing.T) {
	for _, g := range goldenEntries {
		if got := hex.EncodeToString(g.entry.Encode()); got != g.hex {
			t.Errorf("%s is encoded as\n%s, want\n%s", g.name, got, g.hex)
		}
		b, _ := hex.DecodeString(g.hex)
		if got, err := cache.ParseEntry(b); err != nil || !sameEntry(got, g.entry) {
			t.Errorf("%s is read as %+v, error %v", g.name, got, err)
		}
	}
}

func TestEntryDurationsAreCutToTheirFields(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		-time.Second:                      0,
		time.Millisecond - 1:              0,
		1999 * time.Microsecond:           time.Millisecond,
		cache.MaxTTL + time.Hour:          cache.MaxTTL,
		1<<63 - 1:                         cache.MaxTTL,
		cache.MaxTTL - time.Millisecond/2: cache.MaxTTL - time.Millisecond,
	} {
		e := cache.Entry{Version: aToken, Kind: cache.Value, TTL: d, FreshFor: d, Took: d}
		got, err := cache.ParseEntry(e.Encode())
		if err != nil || got.TTL != want || got.FreshFor != want || got.Took != want {
			t.Errorf("%v came back as %v, %v, %v, error %v; want %v", d, got.TTL, got.FreshFor, got.Took, err, want)
		}
	}
}

func TestParseEntryRefusesWhatItDidNotWrite(t *testing.T) {
	good, _ := hex.DecodeString(goldenEntries[0].hex)
	change := func(at int, to byte) []byte { b := bytes.Clone(good); b[at] = to; return b }
	tagged := func(count byte, change func([]byte)) []byte {
		b, _ := hex.DecodeString(goldenEntries[3].hex)
		b[48] = count
		if change != nil {
			change(b)
		}
		return b
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "cut in the header": good[:31], "format 0": change(16, 0), "format 2": change(16, 2),
		"tags that are cut": change(19, 8), "a bypass with tags": tagged(2, func(b []byte) { b[17] = 3 }),
		"no tags": tagged(0, nil), "17 tags": tagged(17, nil), "an empty tag": tagged(2, func(b []byte) { b[50] = 0 }),
		"a tag beyond the end": tagged(2, func(b []byte) { b[49] = 1 }), "a tag that is too long": tagged(2, func(b []byte) { b[49] = 2; b[50] = 1 }),
		"more tags than there are": tagged(16, nil), "cut in the stamp": tagged(2, nil)[:40],
		"renewed, without tags": change(19, 16), "renewed, cut": tagged(2, func(b []byte) { b[19] = 24 })[:50],
		"renewed at 0": tagged(2, func(b []byte) { b[19] = 24; clear(b[48:56]) }),
		"kind 0":       change(17, 0), "kind 4": change(17, 4), "no version": append(make([]byte, 16), good[16:]...),
	} {
		if e, err := cache.ParseEntry(b); !errors.Is(err, cache.ErrDamaged) {
			t.Errorf("%s: read as %+v, error %v, want ErrDamaged", name, e, err)
		}
	}
}

func TestMessageHasThisLayout(t *testing.T) {
	for signal, first := range map[cache.Signal]string{cache.Filled: "46", cache.FailedSignal: "45", cache.Released: "52", cache.Deleted: "44"} {
		m := cache.Message{Signal: signal, Token: aToken, Body: []byte("b")}
		want := first + "0102030405060708fffefdfcfbfaf9f8" + "62"
		if got := hex.EncodeToString(m.Encode()); got != want {
			t.Errorf("%v is encoded as %s, want %s", signal, got, want)
		}
	}
	confirmed := cache.Message{Signal: cache.Confirmed, Token: aToken}
	if _, err := cache.ParseMessage(confirmed.Encode()); !errors.Is(err, cache.ErrDamaged) {
		t.Errorf("a confirmation that travelled: error %v, want ErrDamaged", err)
	}
}

func sameEntry(a, b cache.Entry) bool {
	return slices.Equal(a.Tags, b.Tags) && a.Stamp == b.Stamp && a.Renewed == b.Renewed &&
		a.Version == b.Version && a.Kind == b.Kind && a.Codec == b.Codec && a.Flags == b.Flags &&
		a.TTL == b.TTL && a.FreshFor == b.FreshFor && a.Took == b.Took && bytes.Equal(a.Payload, b.Payload)
}

func FuzzParseEntry(f *testing.F) {
	for _, g := range goldenEntries {
		f.Add(g.entry.Encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := cache.ParseEntry(b)
		if err != nil {
			if !errors.Is(err, cache.ErrDamaged) {
				t.Fatalf("error %v, want ErrDamaged", err)
			}
			return
		}
		if again := e.Encode(); !bytes.Equal(again, b) {
			t.Fatalf("% x was read as %+v and written as % x", b, e, again)
		}
	})
}

func FuzzParseMessage(f *testing.F) {
	m := cache.Message{Signal: cache.Filled, Token: aToken, Body: []byte("body")}
	f.Add(m.Encode())
	f.Add([]byte("C0123456789abcdef"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := cache.ParseMessage(b)
		if err != nil {
			if !errors.Is(err, cache.ErrDamaged) {
				t.Fatalf("error %v, want ErrDamaged", err)
			}
			return
		}
		if again := m.Encode(); !bytes.Equal(again, b) {
			t.Fatalf("% x was read as %+v and written as % x", b, m, again)
		}
	})
}

// FuzzKeyNames checks that all names of a key lie in one slot, and that no two
// names of two keys are the same.
func FuzzKeyNames(f *testing.F) {
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
		var tok cache.Token
		copy(tok[:], token)
		namesA, err := cache.KeyNames("ns", a, tok)
		if err != nil {
			t.Fatal(err)
		}
		namesB, err := cache.KeyNames("ns", b, tok)
		if err != nil {
			t.Fatal(err)
		}
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

// clusterSlot is the slot of a key as the Redis Cluster specification has it
// (section "Keys distribution model"): CRC16, XMODEM, of the hash tag.
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

func FuzzDecompress(f *testing.F) {
	f.Add(cache.Compress([]byte("some payload some payload some payload")))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0})
	f.Add([]byte{})
	const limit = 1 << 16
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := cache.Decompress(b, limit)
		if err != nil && !errors.Is(err, cache.ErrDamaged) || len(got) > limit {
			t.Fatalf("%d bytes, error %v", len(got), err)
		}
		back, err := cache.Decompress(cache.Compress(b), len(b))
		if err != nil || !bytes.Equal(back, b) {
			t.Fatalf("% x came back as % x, error %v", b, back, err)
		}
	})
}

func FuzzCodecs(f *testing.F) {
	good, err := cache.MsgPack{}.Marshal(aProduct())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, b := range hostileLengths() {
		f.Add(b[:min(len(b), 1<<10)])
	}
	f.Add([]byte(`{"Name":"n","Deep":{"a":[1,null]},"Updated":"2026-01-02T03:04:05Z"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, codec := range []cache.Codec{cache.MsgPack{}, cache.JSON{}} {
			for _, v := range decodeTargets() {
				if err := codec.Unmarshal(b, v); err != nil && !errors.Is(err, cache.ErrDamaged) {
					t.Fatalf("%T into %T: error %v, want ErrDamaged", codec, v, err)
				}
			}
		}
		for _, v := range []any{new([]byte), new(string)} {
			if err := (cache.Raw{}).Unmarshal(b, v); err != nil {
				t.Fatalf("Raw into %T: %v", v, err)
			}
		}
	})
}
