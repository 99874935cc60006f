package cache

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// MsgPack stores values as MessagePack, with [github.com/vmihailenco/msgpack/v5]
// and its struct tags. It is the default for all but []byte and string.
//
// What comes back differs in these ways:
//
//   - Unexported fields, and those tagged `msgpack:"-"`, come back zero.
//   - A time.Time is the same instant to the nanosecond, but in the local zone
//     and without its monotonic part: compare with Equal.
//   - A number in an any comes back with the type of its encoding: int(5) as int8.
//   - Nil maps, slices and pointers stay nil, empty ones stay empty.
//
// Marshal refuses what could not be decoded: channels, functions, complex numbers
// and uintptrs; structs without any exported field; values nested deeper than
// 10,000; strings interned with the tag option intern; and structs that embed a
// pointer to a struct (tag it `msgpack:",noinline"`, give it a name, or use [JSON]).
// The library decodes the last with the help of a goroutine that never ends.
// CheckType finds most of this from the type. A value that refers to itself must not
// be stored.
//
// Decoding bytes that are damaged, or made to harm, costs memory in proportion
// to their number: the library itself believes an array's length before it has
// seen an element, so all lengths are checked against the bytes that are there
// first. Each byte may become one element of a slice that your type has, as with
// encoding/json. An extension type that is registered must read its payload with
// ReadFull.
type MsgPack struct{}

// ID implements [Codec].
func (MsgPack) ID() byte { return msgPackID }

// Marshal implements [Codec].
func (MsgPack) Marshal(v any) ([]byte, error) {
	if err := decodable(reflect.TypeOf(v)); err != nil {
		return nil, err
	}
	b, err := msgpack.Marshal(v)
	if err != nil {
		// A type whose pointer has the encoding methods, url.URL for example, is
		// encoded only where it can be addressed.
		if p := addressed(v); p != nil {
			b, err = msgpack.Marshal(p)
		}
	}
	if err == nil {
		err = checkMsgPack(b)
	}
	if err != nil {
		return nil, fmt.Errorf("cache: encoding %T as MessagePack: %w", v, err)
	}
	return b, nil
}

// addressed returns a pointer to a copy of v, or nil if v is a pointer already.
func addressed(v any) any {
	if v == nil || reflect.TypeOf(v).Kind() == reflect.Pointer {
		return nil
	}
	p := reflect.New(reflect.TypeOf(v))
	p.Elem().Set(reflect.ValueOf(v))
	return p.Interface()
}

// Unmarshal implements [Codec]. It returns [ErrDamaged] for bytes that are not
// MessagePack, or not the MessagePack of such a value.
func (MsgPack) Unmarshal(data []byte, v any) error {
	if err := decodable(reflect.TypeOf(v)); err != nil {
		return err
	}
	return decoding("MessagePack", v, func() error {
		if err := checkMsgPack(data); err != nil {
			return err
		}
		r := &msgPackReader{data: data}
		// A decoder of our own: after a damaged value in front of a type's own
		// decoding method, a pooled one records all it reads in every later use.
		if err := msgpack.NewDecoder(r).Decode(v); err != nil {
			return err
		}
		if r.at != len(data) {
			return errTrailing
		}
		return nil
	})
}

var (
	errTrailing = errors.New("bytes are left over")
	errExtAsMap = errors.New("an extension stands where a map should")
)

// A msgPackReader hands data to the decoder. The decoder takes an extension for
// a map if the type asks for one, and what is in the extension for the map's
// length, which nobody has checked. It reads that length with ReadByte, and
// everything that belongs in an extension with Read.
type msgPackReader struct {
	data    []byte
	at      int
	next    int // where the next code stands; what lies before it belongs to the last
	extFrom int // payload of the last extension: up to next
}

func (r *msgPackReader) ReadByte() (byte, error) {
	if r.at >= len(r.data) {
		return 0, io.EOF
	}
	c := r.data[r.at]
	switch {
	case r.at >= r.next:
		code := readCode(r.data[r.at:])
		r.next = r.at + code.head + code.body
		r.extFrom = r.next
		if code.ext {
			r.extFrom = r.at + code.head
		}
	case r.at >= r.extFrom:
		return 0, errExtAsMap
	}
	r.at++
	return c, nil
}

func (r *msgPackReader) UnreadByte() error {
	r.at--
	return nil
}

func (r *msgPackReader) Read(p []byte) (int, error) {
	if r.at >= len(r.data) && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, r.data[r.at:])
	r.at += n
	return n, nil
}

// decodable reports why values of type t can't be encoded or decoded, as far as the
// type tells for certain.
func decodable(t reflect.Type) error {
	if t == nil {
		return nil
	}
	if known, ok := decodableTypes.Load(t); ok {
		err, _ := known.(error)
		return err
	}
	err := errors.Join(findEmbeddedPointer(t, map[reflect.Type]bool{}), msgPackTypes.check(t))
	decodableTypes.Store(t, err)
	return err
}

// decodableTypes has what decodable found out: a nil or an error for each
// [reflect.Type].
var decodableTypes sync.Map

func findEmbeddedPointer(t reflect.Type, visited map[reflect.Type]bool) error {
	if visited[t] || msgPackTypes.decodesItself(t) {
		return nil
	}
	visited[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return findEmbeddedPointer(t.Elem(), visited)
	case reflect.Map:
		return errors.Join(findEmbeddedPointer(t.Key(), visited), findEmbeddedPointer(t.Elem(), visited))
	case reflect.Struct:
		var errs []error
		for f := range t.Fields() {
			errs = append(errs, checkEmbedded(t, f, visited))
		}
		return errors.Join(errs...)
	}
	return nil
}

func checkEmbedded(t reflect.Type, f reflect.StructField, visited map[reflect.Type]bool) error {
	if !msgPackTypes.stores(f) {
		return nil
	}
	_, options, _ := strings.Cut(f.Tag.Get("msgpack"), ",")
	inline := !slices.Contains(strings.Split(options, ","), "noinline")
	if f.Anonymous && inline && f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct && !msgPackTypes.decodesItself(f.Type) {
		return fmt.Errorf("cache: MsgPack can't decode %v: it embeds %v; tag the field `msgpack:\",noinline\"`, name it, or use JSON", t, f.Type)
	}
	return findEmbeddedPointer(f.Type, visited)
}
