package cache_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/stampedeguard/stampede/cache"
)

type inner struct{ Note string }

type Base struct{ Origin string }

type product struct {
	Base
	ID      int64
	Name    string
	Price   float64
	Blob    []byte
	Tags    []string
	Attrs   map[string]string
	Counts  map[string]int
	Any     any
	Deep    map[string]any
	Updated time.Time
	Seen    *time.Time
	Inner   *inner
	Many    []inner
	Took    time.Duration
	secret  string
}

func aProduct() product {
	seen := time.Date(2026, 2, 3, 4, 5, 6, 789_000_001, time.UTC)
	return product{
		Base: Base{"here"}, ID: math.MinInt64, Name: "näme\x00", Price: math.Inf(-1), Blob: []byte{0, 0xff},
		Tags: []string{"", "b"}, Attrs: map[string]string{"k": "v"}, Counts: map[string]int{"n": -1},
		Any: "text", Deep: map[string]any{"list": []any{"x", true, nil}},
		Updated: seen.Add(time.Nanosecond), Seen: &seen, Inner: &inner{"i"}, Many: []inner{{"m"}, {}},
		Took: time.Minute, secret: "mine",
	}
}

// there encodes v and decodes it into a new V.
func there[V any](t *testing.T, codec cache.Codec, v V) V {
	t.Helper()
	b, err := codec.Marshal(v)
	if err != nil {
		t.Fatalf("%T: encoding %T: %v", codec, v, err)
	}
	var got V
	if err := codec.Unmarshal(b, &got); err != nil {
		t.Fatalf("%T: decoding %T: %v", codec, v, err)
	}
	return got
}

func TestMsgPackGoesThereAndBack(t *testing.T) {
	want := aProduct()
	got := there(t, cache.MsgPack{}, want)
	if !got.Updated.Equal(want.Updated) || !got.Seen.Equal(*want.Seen) {
		t.Errorf("times came back as %v and %v", got.Updated, got.Seen)
	}
	if got.secret != "" {
		t.Errorf("an unexported field came back as %q", got.secret)
	}
	got.Updated, got.Seen, got.secret = want.Updated, want.Seen, want.secret
	if !reflect.DeepEqual(got, want) {
		t.Errorf("came back as\n%+v, want\n%+v", got, want)
	}
}

func TestNilStaysNilAndEmptyStaysEmpty(t *testing.T) {
	type holder struct {
		M map[string]int
		S []string
		B []byte
		P *inner
	}
	for _, codec := range []cache.Codec{cache.MsgPack{}, cache.JSON{}} {
		for _, want := range []holder{{}, {M: map[string]int{}, S: []string{}, B: []byte{}, P: &inner{}}} {
			if got := there(t, codec, want); !reflect.DeepEqual(got, want) {
				t.Errorf("%T: %#v came back as %#v", codec, want, got)
			}
		}
		if got := there(t, codec, time.Time{}); !got.IsZero() {
			t.Errorf("%T: the zero time came back as %v", codec, got)
		}
		if got := there[map[string]string](t, codec, nil); got != nil {
			t.Errorf("%T: a nil map came back as %v", codec, got)
		}
	}
}

func TestRawKeepsBytesAndStringsAsTheyAre(t *testing.T) {
	type name string
	type blob []byte
	hostile := "\x00\xff\xdd}{"
	if got := there(t, cache.Raw{}, hostile); got != hostile {
		t.Errorf("string came back as %q", got)
	}
	if got := there(t, cache.Raw{}, name(hostile)); got != name(hostile) {
		t.Errorf("named string came back as %q", got)
	}
	if got := there(t, cache.Raw{}, blob(hostile)); string(got) != hostile {
		t.Errorf("named bytes came back as %q", got)
	}
	if got := there(t, cache.Raw{}, json.RawMessage(hostile)); string(got) != hostile {
		t.Errorf("json.RawMessage came back as %q", got)
	}
}

func TestRawCopiesBothWays(t *testing.T) {
	v := []byte("abc")
	b, err := cache.Raw{}.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	v[0] = 'X'
	var got []byte
	if err := (cache.Raw{}).Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	got[1] = 'Y'
	if string(b) != "abc" {
		t.Errorf("the payload became %q when the values were changed", b)
	}
}

func TestRawRefusesOtherTypes(t *testing.T) {
	for _, v := range []any{nil, 1, struct{}{}, []string{"a"}, new(string)} {
		if b, err := (cache.Raw{}).Marshal(v); err == nil {
			t.Errorf("Marshal(%T) gave %q, want an error", v, b)
		}
	}
	for _, v := range []any{nil, new(int), "text", []byte{}} {
		if err := (cache.Raw{}).Unmarshal([]byte("x"), v); err == nil {
			t.Errorf("Unmarshal into %T succeeded, want an error", v)
		}
	}
}

func TestCodecForChoosesByType(t *testing.T) {
	type name string
	for _, c := range []struct {
		got  cache.Codec
		want cache.Codec
		id   byte
	}{
		{cache.CodecFor[string](), cache.Raw{}, 0},
		{cache.CodecFor[name](), cache.Raw{}, 0},
		{cache.CodecFor[[]byte](), cache.Raw{}, 0},
		{cache.CodecFor[json.RawMessage](), cache.Raw{}, 0},
		{cache.CodecFor[product](), cache.MsgPack{}, 1},
		{cache.CodecFor[*product](), cache.MsgPack{}, 1},
		{cache.CodecFor[any](), cache.MsgPack{}, 1},
		{cache.JSON{}, cache.JSON{}, 2},
	} {
		if c.got != c.want || c.got.ID() != c.id {
			t.Errorf("got %T with ID %d, want %T with ID %d", c.got, c.got.ID(), c.want, c.id)
		}
	}
}

// pair writes two values where a struct's field owes one.
type pair struct{ A, B string }

func (p *pair) EncodeMsgpack(e *msgpack.Encoder) error { return e.EncodeMulti(p.A, p.B) }
func (p *pair) DecodeMsgpack(d *msgpack.Decoder) error { return d.DecodeMulti(&p.A, &p.B) }

func TestMsgPackLetsTypesEncodeThemselves(t *testing.T) {
	want := struct {
		P *pair
		Q []*pair
		N string
	}{&pair{"a", "b"}, []*pair{{"c", "d"}, {"e", "f"}}, "n"}
	if got := there(t, cache.MsgPack{}, want); !reflect.DeepEqual(got, want) {
		t.Errorf("came back as %+v", got)
	}
	if got := there(t, cache.MsgPack{}, &pair{"a", "b"}); *got != (pair{"a", "b"}) {
		t.Errorf("came back as %+v", got)
	}
}

func TestMsgPackRefusesUndecodableValues(t *testing.T) {
	type embeds struct {
		*Base
		N int
	}
	type tagged struct {
		*Base `msgpack:",noinline"`
	}
	type interned struct {
		A, B string `msgpack:",intern"`
	}
	deep := any("x")
	for range 10_001 {
		deep = []any{deep}
	}
	for name, v := range map[string]any{
		"embedded pointer":        embeds{},
		"embedded pointer inside": map[string][]*embeds{},
		"interned strings":        interned{"aaaa", "aaaa"},
		"nesting":                 deep,
		"channel":                 make(chan int),
	} {
		if _, err := (cache.MsgPack{}).Marshal(v); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	var into embeds
	if err := (cache.MsgPack{}).Unmarshal([]byte{0x80}, &into); err == nil {
		t.Error("decoding an embedded pointer: no error")
	}
	want := tagged{&Base{"here"}}
	if got := there(t, cache.MsgPack{}, want); !reflect.DeepEqual(got, want) {
		t.Errorf("the way out that the error names: came back as %+v", got)
	}
}

// TestMsgPackStartsNoGoroutines: for an embedded pointer the library starts one
// that never ends, and a testing/synctest bubble waits for it.
func TestMsgPackStartsNoGoroutines(t *testing.T) {
	type embeds struct {
		*Base
		N int
	}
	before := runtime.NumGoroutine()
	there(t, cache.MsgPack{}, aProduct())
	there(t, cache.MsgPack{}, map[inner]*inner{{"a"}: {"b"}})
	b, err := msgpack.Marshal(embeds{&Base{"here"}, 1})
	if err != nil {
		t.Fatal(err)
	}
	var v embeds
	if err := (cache.MsgPack{}).Unmarshal(b, &v); err == nil || errors.Is(err, cache.ErrDamaged) {
		t.Errorf("decoding an embedded pointer: error %v, want one that names the type", err)
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
}

// hostileLengths promise up to 2^32-1 elements and bring none.
func hostileLengths() map[string][]byte {
	h := map[string][]byte{
		"array":         {0xdd, 0xff, 0xff, 0xff, 0xff},
		"smaller array": {0xdd, 0x01, 0xff, 0xff, 0xff},
		"map":           {0xdf, 0xff, 0xff, 0xff, 0xff},
		"bytes":         {0xc6, 0xff, 0xff, 0xff, 0xff},
		"string":        {0xdb, 0xff, 0xff, 0xff, 0xff},
		"extension":     {0xc9, 0xff, 0xff, 0xff, 0xff, 0xff},
		// A map decoder skips an extension's header and goes on inside it.
		"map in extension": {0xd7, 0xff, 0xdf, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0},
		"map in ext8":      {0xc7, 12, 0xff, 0xdf, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0},
	}
	nested := []byte{}
	for range 20_000 {
		nested = append(nested, 0xdd, 0x00, 0x01, 0x00, 0x00) // each claims all that is left
	}
	h["arrays in arrays"] = append(nested, make([]byte, 1<<16)...)
	h["deep"] = bytes.Repeat([]byte{0x91}, 1<<20)
	for _, name := range []string{"array", "map", "bytes", "string", "map in extension"} {
		h[name+" in a field"] = append([]byte{0x81, 0xa4, 'D', 'e', 'e', 'p'}, h[name]...)
		h[name+" in an unknown field"] = append([]byte{0x81, 0xa1, '?'}, h[name]...)
	}
	return h
}

// decodeTargets are pointers to types of all the kinds that the library decodes
// in different ways.
func decodeTargets() []any {
	return []any{
		new(product), new(any), new([]string), new([]int), new([]any), new([]inner), new([]byte), new(string),
		new(map[string]string), new(map[string]any), new(map[any]any), new(map[string]int), new(map[string]bool),
		new([4]int), new([4]byte), new(time.Time), new(*inner), new(pair), new(map[string]map[string]any), new(fmt.Stringer), new(int8),
	}
}

// pitfall 31
func TestMsgPackDoesNotAllocateForWrongLengths(t *testing.T) {
	for name, b := range hostileLengths() {
		for _, v := range decodeTargets() {
			allocated := allocatedBy(func() {
				err := cache.MsgPack{}.Unmarshal(b, v)
				if time := strings.Contains(name, "in ext"); time && err == nil {
					return // to a type that doesn't ask for a map it is a time, and a good one
				}
				if !errors.Is(err, cache.ErrDamaged) {
					t.Errorf("%s into %T: error %v, want ErrDamaged", name, v, err)
				}
			})
			// The cost of a decoder, its error and a stack of lengths.
			if allocated > 1<<20 {
				t.Errorf("%s, %d bytes, into %T: %d bytes were allocated", name, len(b), v, allocated)
			}
		}
	}
}

// allocatedBy includes the allocations of other goroutines: compare with a generous
// limit.
func allocatedBy(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// pitfall 31
func TestDecodingDamagedBytesNeverPanics(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, codec := range []cache.Codec{cache.MsgPack{}, cache.JSON{}} {
		good, err := codec.Marshal(aProduct())
		if _, isJSON := codec.(cache.JSON); isJSON {
			p := aProduct()
			p.Price = 1
			good, err = codec.Marshal(p)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10_000 {
			b := damaged(rng, good, i%2 == 0)
			for _, v := range decodeTargets() {
				if err := codec.Unmarshal(b, v); err != nil && !errors.Is(err, cache.ErrDamaged) {
					t.Fatalf("%T: decoding % x into %T: error %v, want ErrDamaged", codec, b, v, err)
				}
			}
		}
	}
}

// damaged returns random bytes, or good with some bits flipped and perhaps cut.
func damaged(rng *rand.Rand, good []byte, random bool) []byte {
	if random {
		b := make([]byte, rng.IntN(64))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	b := bytes.Clone(good)
	for range 1 + rng.IntN(3) {
		b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
	}
	return b[:len(b)-rng.IntN(2)*rng.IntN(len(b))]
}

func TestDamagedPayloadIsErrDamaged(t *testing.T) {
	good, err := cache.MsgPack{}.Marshal("text")
	if err != nil {
		t.Fatal(err)
	}
	var s string
	for name, b := range map[string][]byte{"empty": {}, "cut": good[:len(good)-1], "longer": append(bytes.Clone(good), 0xc0), "code c1": {0xc1}} {
		if err := (cache.MsgPack{}).Unmarshal(b, &s); !errors.Is(err, cache.ErrDamaged) {
			t.Errorf("MsgPack, %s: error %v, want ErrDamaged", name, err)
		}
	}
	if err := (cache.JSON{}).Unmarshal([]byte("{"), &s); !errors.Is(err, cache.ErrDamaged) {
		t.Errorf("JSON: error %v, want ErrDamaged", err)
	}
}

// angry panics when it is decoded, as a user's method may.
type angry struct{}

func (*angry) DecodeMsgpack(*msgpack.Decoder) error { panic("boo") }
func (angry) EncodeMsgpack(e *msgpack.Encoder) error {
	return e.EncodeNil()
}

func TestPanicInACustomDecoderIsAnError(t *testing.T) {
	var v struct{ A *angry }
	if err := (cache.MsgPack{}).Unmarshal([]byte{0x81, 0xa1, 'A', 0x01}, &v); !errors.Is(err, cache.ErrDamaged) {
		t.Errorf("error %v, want ErrDamaged", err)
	}
}
