package store_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/internal/store"
)

var aToken = store.Token{0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0xfa, 0xf9, 0xf8}

var aStamp = store.Stamp{Epoch: store.Epoch{1, 2, 3, 4, 5, 6, 7, 0xff}, N: 258}

// goldenEntries are the header as other versions and other languages know it: a change
// here is a new format.
var goldenEntries = []struct {
	name  string
	entry store.Entry
	hex   string
}{
	{
		"value",
		store.Entry{
			Version: aToken, Kind: store.Value, Codec: 2, Flags: store.FlagCompressed, Written: 1_700_000_000_000_258,
			TTL: time.Hour, FreshFor: time.Minute, Took: 1500 * time.Millisecond, Payload: []byte("ab\x00"),
		},
		"0102030405060708fffefdfcfbfaf9f8" + "02" + "01" + "02" + "01" + "0036ee80" + "0000ea60" + "000005dc" + "6553f100" + "00000102" + "616200",
	},
	{
		"negative",
		store.Entry{Version: aToken, Kind: store.Negative, TTL: time.Millisecond},
		"0102030405060708fffefdfcfbfaf9f8" + "02" + "02" + "00" + "00" + "00000001" + "00000000" + "00000000" + "00000000" + "00000000",
	},
	{
		"bypass",
		store.Entry{
			Version: aToken, Kind: store.Bypass, Codec: 255, Flags: store.FlagExpired | store.FlagTooLarge, Written: 1<<32*1e6 - 1,
			TTL: store.MaxTTL, FreshFor: store.MaxTTL, Took: store.MaxTTL,
		},
		"0102030405060708fffefdfcfbfaf9f8" + "02" + "03" + "ff" + "06" + "ffffffff" + "ffffffff" + "ffffffff" + "ffffffff" + "000f423f",
	},
	{
		"tagged",
		store.Entry{
			Version: aToken, Kind: store.Value, Codec: 1, Flags: store.FlagTagged, TTL: time.Second, FreshFor: time.Second, Written: 1,
			Tags: []string{"g:ab", "}"}, Stamp: aStamp, Payload: []byte("v"),
		},
		"0102030405060708fffefdfcfbfaf9f8" + "02" + "01" + "01" + "08" + "000003e8" + "000003e8" + "00000000" + "00000000" + "00000001" +
			"01020304050607ff" + "0000000000000102" + "02" + "0004" + "673a6162" + "0001" + "7d" + "76",
	},
	{
		"renewed",
		store.Entry{
			Version: aToken, Kind: store.Value, Codec: 1, Flags: store.FlagTagged | store.FlagRenewed, TTL: time.Second, FreshFor: time.Second,
			Tags: []string{"t"}, Stamp: aStamp, Renewed: 259, Payload: []byte("v"),
		},
		"0102030405060708fffefdfcfbfaf9f8" + "02" + "01" + "01" + "18" + "000003e8" + "000003e8" + "00000000" + "00000000" + "00000000" +
			"01020304050607ff" + "0000000000000102" + "0000000000000103" + "01" + "0001" + "74" + "76",
	},
}

func TestEntryHasThisLayout(t *testing.T) {
	for _, g := range goldenEntries {
		if got := hex.EncodeToString(g.entry.Encode()); got != g.hex {
			t.Errorf("%s is encoded as\n%s, want\n%s", g.name, got, g.hex)
		}
		b, _ := hex.DecodeString(g.hex)
		if got := (store.Entry{}); got.Parse(b) != nil || !sameEntry(got, g.entry) {
			t.Errorf("%s is read as %+v, error %v", g.name, got, (&store.Entry{}).Parse(b))
		}
	}
}

func TestEntryDurationsAreCutToTheirFields(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		-time.Second:                      0,
		time.Millisecond - 1:              0,
		1999 * time.Microsecond:           time.Millisecond,
		store.MaxTTL + time.Hour:          store.MaxTTL,
		1<<63 - 1:                         store.MaxTTL,
		store.MaxTTL - time.Millisecond/2: store.MaxTTL - time.Millisecond,
	} {
		e := store.Entry{Version: aToken, Kind: store.Value, TTL: d, FreshFor: d, Took: d}
		var got store.Entry
		if err := got.Parse(e.Encode()); err != nil || got.TTL != want || got.FreshFor != want || got.Took != want {
			t.Errorf("%v came back as %v, %v, %v, error %v; want %v", d, got.TTL, got.FreshFor, got.Took, err, want)
		}
	}
}

func TestForeignBytesAreNoEntry(t *testing.T) {
	good, _ := hex.DecodeString(goldenEntries[0].hex)
	change := func(at int, to byte) []byte { b := bytes.Clone(good); b[at] = to; return b }
	tagged := func(count byte, change func([]byte)) []byte {
		b, _ := hex.DecodeString(goldenEntries[3].hex)
		b[store.HeaderSize+16] = count
		if change != nil {
			change(b)
		}
		return b
	}
	const first = store.HeaderSize + 17 // the length of the first tag
	for name, b := range map[string][]byte{
		"nothing": nil, "cut in the header": good[:39], "format 0": change(16, 0), "format 1": change(16, 1), "format 3": change(16, 3),
		"tags that are cut": change(19, 8), "a bypass with tags": tagged(2, func(b []byte) { b[17] = 3 }),
		"no tags": tagged(0, nil), "17 tags": tagged(17, nil), "an empty tag": tagged(2, func(b []byte) { b[first+1] = 0 }),
		"a tag beyond the end": tagged(2, func(b []byte) { b[first] = 1 }), "a tag that is too long": tagged(2, func(b []byte) { b[first] = 2; b[first+1] = 1 }),
		"more tags than there are": tagged(16, nil), "cut in the stamp": tagged(2, nil)[:48],
		"renewed, without tags": change(19, 16), "renewed, cut": tagged(2, func(b []byte) { b[19] = 24 })[:58],
		"renewed at 0": tagged(2, func(b []byte) { b[19] = 24; clear(b[56:64]) }),
		"kind 0":       change(17, 0), "kind 4": change(17, 4), "no version": append(make([]byte, 16), good[16:]...),
		"a second of a million microseconds": change(37, 16),
	} {
		if e := (store.Entry{}); !errors.Is(e.Parse(b), store.ErrDamaged) {
			t.Errorf("%s: read as %+v, want ErrDamaged", name, e)
		}
	}
}

func TestReadingTellsAgeAndTimeLeft(t *testing.T) {
	const written = store.Instant(1_700_000_000_000_000)
	e := store.Entry{Version: aToken, Kind: store.Value, TTL: time.Minute, FreshFor: 10 * time.Second, Written: written}
	for _, c := range []struct{ now, age, left time.Duration }{
		{0, 0, time.Minute},
		{1500 * time.Microsecond, 1500 * time.Microsecond, time.Minute - 1500*time.Microsecond},
		{10 * time.Second, 10 * time.Second, 50 * time.Second},
		{time.Hour, time.Hour, 0},
		{-time.Hour, 0, time.Minute}, // by the clock of another server
	} {
		var r store.Reading
		r.Parse(e.Encode(), store.Instant(int64(written)+c.now.Microseconds()))
		if !r.Found || r.Age != c.age || r.Left != c.left || r.Fresh() != (c.age < e.FreshFor) {
			t.Errorf("after %v: age %v, left %v, fresh=%v", c.now, r.Age, r.Left, r.Fresh())
		}
	}
}

func TestParsingAnEntryDoesNotAllocate(t *testing.T) {
	b := goldenEntries[0].entry.Encode()
	if n := testing.AllocsPerRun(100, func() {
		var r store.Reading
		r.Parse(b, 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func sameEntry(a, b store.Entry) bool {
	return slices.Equal(a.Tags, b.Tags) && a.Stamp == b.Stamp && a.Renewed == b.Renewed && a.Written == b.Written &&
		a.Version == b.Version && a.Kind == b.Kind && a.Codec == b.Codec && a.Flags == b.Flags &&
		a.TTL == b.TTL && a.FreshFor == b.FreshFor && a.Took == b.Took && bytes.Equal(a.Payload, b.Payload)
}

func FuzzEntry(f *testing.F) {
	for _, g := range goldenEntries {
		f.Add(g.entry.Encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e store.Entry
		if err := e.Parse(b); err != nil {
			if !errors.Is(err, store.ErrDamaged) {
				t.Fatalf("error %v, want ErrDamaged", err)
			}
			return
		}
		if again := e.Encode(); !bytes.Equal(again, b) {
			t.Fatalf("% x was read as %+v and written as % x", b, e, again)
		}
	})
}

func TestMessageHasThisLayout(t *testing.T) {
	for signal, first := range map[store.Signal]string{store.Filled: "46", store.FailedSignal: "45", store.Released: "52", store.Deleted: "44"} {
		m := store.Message{Signal: signal, Token: aToken, Body: []byte("b")}
		want := first + "0102030405060708fffefdfcfbfaf9f8" + "62"
		if got := hex.EncodeToString(m.Encode()); got != want {
			t.Errorf("%v is encoded as %s, want %s", signal, got, want)
		}
	}
	confirmed := store.Message{Signal: store.Confirmed, Token: aToken}
	if _, err := store.ParseMessage(confirmed.Encode()); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("a confirmation that travelled: error %v, want ErrDamaged", err)
	}
}

func FuzzMessage(f *testing.F) {
	m := store.Message{Signal: store.Filled, Token: aToken, Body: []byte("body")}
	f.Add(m.Encode())
	f.Add([]byte("C0123456789abcdef"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := store.ParseMessage(b)
		if err != nil {
			if !errors.Is(err, store.ErrDamaged) {
				t.Fatalf("error %v, want ErrDamaged", err)
			}
			return
		}
		if again := m.Encode(); !bytes.Equal(again, b) {
			t.Fatalf("% x was read as %+v and written as % x", b, m, again)
		}
		if r := m.Reading(); r.Found && r.Age != 0 {
			t.Fatalf("the entry of a message has age %v", r.Age)
		}
	})
}
