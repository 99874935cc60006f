package cache_test

import (
	"context"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

type (
	itself  []itself
	hidden  struct{ n int }
	chained struct {
		Name string
		Next *chained
		Done chan struct{}
	}
	holdsReader struct{ Body io.Reader }
	skips       struct {
		N    int
		Body io.Reader     `msgpack:"-" json:"-"`
		Done chan struct{} `msgpack:"-" json:"-"`
		call func()
	}
	plain struct {
		hidden
		N      int
		When   time.Time
		Big    *big.Int
		Site   url.URL
		Any    any
		Labels map[string][]*plain
	}
	keyed    struct{ ByPoint map[struct{ X int }]string }
	fallible struct{ Err error }
	bySite   map[string]struct{ Site url.URL }
)

func TestCheckTypeRefusesTypes(t *testing.T) {
	_ = skips{call: func() {}}.call // the linter wants them used
	_ = plain{hidden: hidden{n: 1}}
	type result struct {
		t             reflect.Type
		msgpack, json string // texts of the errors; empty: no error
	}
	for _, want := range []result{
		{reflect.TypeFor[chan int](), "chan int", "chan int"},
		{reflect.TypeFor[func()](), "func()", "func()"},
		{reflect.TypeFor[map[string][]func()](), "func()", "func()"},
		{reflect.TypeFor[complex128](), "complex128", "complex128"},
		{reflect.TypeFor[[]uintptr](), "uintptr", ""},
		{reflect.TypeFor[*chained](), "field Done of cache_test.chained", "field Done of cache_test.chained"},
		{reflect.TypeFor[fmt.Stringer](), "fmt.Stringer", "fmt.Stringer"},
		{reflect.TypeFor[context.Context](), "context.Context", "context.Context"},
		{reflect.TypeFor[[]holdsReader](), "field Body of cache_test.holdsReader", "field Body of cache_test.holdsReader"},
		{reflect.TypeFor[fallible](), "", "field Err of cache_test.fallible"},
		{reflect.TypeFor[bySite](), "url.URL in a map", ""},
		{reflect.TypeFor[map[string]*url.URL](), "", ""},
		{reflect.TypeFor[error](), "", "error"},
		{reflect.TypeFor[keyed](), "", "as a map's key"},
		{reflect.TypeFor[map[any]int](), "", "as a map's key"},
		{reflect.TypeFor[map[string]*hidden](), "no exported fields", "no exported fields"},
		{reflect.TypeFor[skips](), "", ""},
		{reflect.TypeFor[plain](), "", ""},
		{reflect.TypeFor[itself](), "", ""},
		{reflect.TypeFor[struct{}](), "", ""},
		{reflect.TypeFor[any](), "", ""},
		{reflect.TypeFor[map[int]any](), "", ""},
		{reflect.TypeFor[time.Time](), "", ""},
		{reflect.TypeFor[*big.Int](), "", ""},
		{reflect.TypeFor[string](), "", ""},
		{reflect.TypeFor[[]byte](), "", ""},
	} {
		for codec, text := range map[interface{ CheckType(t reflect.Type) error }]string{cache.MsgPack{}: want.msgpack, cache.JSON{}: want.json} {
			err := codec.CheckType(want.t)
			if (err != nil) != (text != "") || err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%T, %v: error %v, want %q", codec, want.t, err, text)
			}
		}
	}
	if err := (cache.Raw{}).CheckType(reflect.TypeFor[int]()); err == nil {
		t.Error("Raw takes an int")
	}
	if err := (cache.Raw{}).CheckType(reflect.TypeFor[[]byte]()); err != nil {
		t.Errorf("Raw doesn't take bytes: %v", err)
	}
}

// Types that the check refuses fail with the first value, and all others come back.
func TestCheckedTypesGoThereAndBack(t *testing.T) {
	for _, codec := range []cache.Codec{cache.MsgPack{}, cache.JSON{}} {
		want := plain{N: 1, When: time.Unix(1, 0).UTC(), Big: big.NewInt(7), Site: url.URL{Host: "a"}, Labels: map[string][]*plain{"x": {}}}
		got := there(t, codec, want)
		if got.N != 1 || !got.When.Equal(want.When) || got.Big.Cmp(want.Big) != 0 || len(got.Labels) != 1 {
			t.Errorf("%T: came back as %+v", codec, got)
		}
		for _, bad := range []any{make(chan int), complex(1, 1), &chained{Done: make(chan struct{})}, []func(){nil}} {
			if _, err := codec.Marshal(bad); err == nil {
				t.Errorf("%T encodes a %T", codec, bad)
			}
		}
		b, err := codec.Marshal(holdsReader{strings.NewReader("x")})
		if err == nil {
			err = codec.Unmarshal(b, new(holdsReader))
		}
		if err == nil {
			t.Errorf("%T: an interface with methods came back", codec)
		}
	}
	if _, err := (cache.MsgPack{}).Marshal(bySite{"x": {}}); err == nil {
		t.Error("MsgPack encodes a url.URL in a map")
	}
	if _, err := (cache.MsgPack{}).Marshal([]uintptr{1}); err == nil {
		t.Error("MsgPack encodes a uintptr")
	}
	if got := there(t, cache.MsgPack{}, fallible{io.EOF}); got.Err.Error() != "EOF" {
		t.Errorf("an error came back as %v", got.Err)
	}
}
