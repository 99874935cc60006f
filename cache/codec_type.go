package cache

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// CheckType returns an error that names the parts of t that cannot be encoded or decoded.
// After nil, values in an interface may still fail. Unlike Marshal it also refuses interface types with
// methods, except error: the decoder does not know which type to decode into. (If all
// values are of registered extension types, wrap MsgPack in a codec of your own.)
func (MsgPack) CheckType(t reflect.Type) error {
	f := msgPackTypes
	f.methods = true
	return f.check(t)
}

// checkMsgPackType is the check of Marshal and Unmarshal, once for each type.
func checkMsgPackType(t reflect.Type) error {
	if t == nil {
		return nil
	}
	known, ok := msgPackChecked.Load(t)
	if !ok {
		known, _ = msgPackChecked.LoadOrStore(t, msgPackTypes.check(t))
	}
	err, _ := known.(error)
	return err
}

// msgPackChecked has a nil or an error for each [reflect.Type].
var msgPackChecked sync.Map

// CheckType returns an error that names the parts of t that cannot be encoded or decoded.
func (JSON) CheckType(t reflect.Type) error { return jsonTypes.check(t) }

// CheckType returns an error unless t is a []byte or a string.
func (Raw) CheckType(t reflect.Type) error {
	if !isRaw(t) {
		return fmt.Errorf("cache: Raw stores []byte and string, not %v; use MsgPack or JSON", t)
	}
	return nil
}

// A format describes the types that a codec can store.
type format struct {
	codec string         // its name, and its tag in lower case
	self  []reflect.Type // interfaces with the methods that decode a type's values
	kinds []reflect.Kind // of types that have no encoding
	// methods: interface types with methods are refused, except error if errorAsText.
	methods, errorAsText bool
	noEmbedded           bool                    // embedded pointers to structs are refused, unless tagged noinline
	key                  func(reflect.Type) bool // may be a map's key; nil: all may
	// byAddress are interfaces with the methods that encode a type's values. If only the
	// type's pointer has them, only an addressable value can be encoded.
	byAddress []reflect.Type
}

var msgPackTypes = format{
	codec: "MsgPack",
	self: []reflect.Type{
		reflect.TypeFor[msgpack.CustomDecoder](),
		reflect.TypeFor[msgpack.Unmarshaler](),
		reflect.TypeFor[encoding.BinaryUnmarshaler](),
		reflect.TypeFor[encoding.TextUnmarshaler](),
	},
	kinds: []reflect.Kind{
		reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128, reflect.Uintptr,
	},
	errorAsText: true,
	noEmbedded:  true,
	byAddress: []reflect.Type{
		reflect.TypeFor[msgpack.CustomEncoder](),
		reflect.TypeFor[msgpack.Marshaler](),
		reflect.TypeFor[encoding.BinaryMarshaler](),
		reflect.TypeFor[encoding.TextMarshaler](),
	},
}

var jsonTypes = format{
	codec:   "JSON",
	self:    []reflect.Type{reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()},
	kinds:   []reflect.Kind{reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128},
	methods: true,
	key: func(t reflect.Type) bool {
		text := reflect.TypeFor[encoding.TextUnmarshaler]()
		return t.Kind() == reflect.String || t.Kind() >= reflect.Int && t.Kind() <= reflect.Uintptr ||
			t.Implements(text) || reflect.PointerTo(t).Implements(text)
	},
}

func (f *format) check(t reflect.Type) error {
	return errors.Join(f.find(t, "", true, map[visit]bool{}), f.findNothing(t))
}

type visit struct {
	t           reflect.Type
	addressable bool
}

// find names each type that is t or a part of it and has no encoding. where is the position
// of t, for errors; empty: t is the whole type.
func (f *format) find(t reflect.Type, where string, addressable bool, visited map[visit]bool) error {
	if visited[visit{t, addressable}] {
		return nil
	}
	visited[visit{t, addressable}] = true
	kind := t.Kind()
	switch {
	case kind == reflect.Interface:
		text := f.errorAsText && t == reflect.TypeFor[error]()
		if f.methods && t.NumMethod() > 0 && !text {
			return f.cant(t, where, "whose values it could not decode")
		}
		return nil
	case !addressable && !implementsAny(t, f.byAddress) && implementsAny(reflect.PointerTo(t), f.byAddress):
		return f.cant(t, where, "in a map, as only its pointer has the methods that encode it")
	case f.decodesItself(t):
		return nil
	case slices.Contains(f.kinds, kind):
		return f.cant(t, where, "")
	case kind == reflect.Map && f.key != nil && !f.key(t.Key()):
		return f.cant(t.Key(), where, "as a map's key")
	}
	switch kind {
	case reflect.Array:
		return f.find(t.Elem(), where, addressable, visited)
	case reflect.Pointer, reflect.Slice:
		return f.find(t.Elem(), where, true, visited)
	case reflect.Map:
		return errors.Join(f.find(t.Key(), where, false, visited), f.find(t.Elem(), where, false, visited))
	case reflect.Struct:
		var errs []error
		for field := range t.Fields() {
			if f.stores(field) {
				errs = append(errs, f.checkEmbedded(t, field))
				in := fmt.Sprintf("field %s of %v", field.Name, t)
				errs = append(errs, f.find(field.Type, in, addressable, visited))
			}
		}
		return errors.Join(errs...)
	}
	return nil
}

// stores reports whether the codec stores a field.
func (f *format) stores(field reflect.StructField) bool {
	name, _, _ := strings.Cut(field.Tag.Get(f.tag()), ",")
	return name != "-" && (field.IsExported() || field.Anonymous)
}

func (f *format) checkEmbedded(t reflect.Type, field reflect.StructField) error {
	pointer := field.Type.Kind() == reflect.Pointer && field.Type.Elem().Kind() == reflect.Struct
	if !f.noEmbedded || !field.Anonymous || !pointer || f.decodesItself(field.Type) ||
		slices.Contains(strings.Split(field.Tag.Get(f.tag()), ",")[1:], "noinline") {
		return nil
	}
	return fmt.Errorf("cache: MsgPack can't decode %v: it embeds %v; tag the field `msgpack:\",noinline\"`, name it, or use JSON", t, field.Type)
}

func (f *format) tag() string { return strings.ToLower(f.codec) }

func (f *format) cant(t reflect.Type, where, why string) error {
	text := fmt.Sprintf("cache: %s can't store a %v", f.codec, t)
	if why != "" {
		text += " " + why
	}
	if where == "" {
		return fmt.Errorf("%s: use another type, or a codec of your own", text)
	}
	return fmt.Errorf("%s (%s): tag the field `%s:\"-\"`, give it another type, or use a codec of your own", text, where, f.tag())
}

// findNothing reports that a struct, alone or as an element of t, has no field to store.
func (f *format) findNothing(t reflect.Type) error {
	const deep = 8 // a type may be a slice of itself
	for range deep {
		if t.Kind() == reflect.Interface || f.decodesItself(t) {
			return nil
		}
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			t = t.Elem()
			continue
		case reflect.Struct:
			fields := reflect.VisibleFields(t)
			shown := func(field reflect.StructField) bool { return field.IsExported() || field.Anonymous }
			if len(fields) > 0 && !slices.ContainsFunc(fields, shown) {
				return fmt.Errorf("cache: %s would store nothing of %v, which has no exported fields; export them, or use a codec of your own", f.codec, t)
			}
		}
		return nil
	}
	return nil
}

// decodesItself reports whether the type's own methods decode its values.
func (f *format) decodesItself(t reflect.Type) bool {
	return implementsAny(t, f.self) || implementsAny(reflect.PointerTo(t), f.self)
}

func implementsAny(t reflect.Type, interfaces []reflect.Type) bool {
	return slices.ContainsFunc(interfaces, t.Implements)
}
