package cache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// A Codec turns values into payload bytes and back. Implementations are safe
// for concurrent use.
type Codec interface {
	// ID names the codec in the header of every entry. 0 to 127 belong to this module;
	// use 128 or above for your own.
	ID() byte
	// Marshal encodes v. The bytes belong to the caller.
	Marshal(v any) ([]byte, error)
	// Unmarshal decodes data into v, which is a non-nil pointer. data may be
	// retained but not changed.
	Unmarshal(data []byte, v any) error
}

// The IDs of this module's codecs.
const (
	rawID     = 0
	msgPackID = 1
	jsonID    = 2
)

// CodecFor returns the default codec for values of type V:
// [Raw] for []byte, string and types made from them, else [MsgPack].
func CodecFor[V any]() Codec {
	if isRaw(reflect.TypeFor[V]()) {
		return Raw{}
	}
	return MsgPack{}
}

// Raw stores []byte and string as they are, and types made from them; any other
// type is an error. A nil []byte comes back empty and not nil.
type Raw struct{}

// ID implements [Codec].
func (Raw) ID() byte { return rawID }

// Marshal implements [Codec].
func (Raw) Marshal(v any) ([]byte, error) {
	rv := reflect.ValueOf(v)
	if !rv.IsValid() || !isRaw(rv.Type()) {
		return nil, fmt.Errorf("cache: Raw stores []byte and string, not %T", v)
	}
	if rv.Kind() == reflect.String {
		return []byte(rv.String()), nil
	}
	return bytes.Clone(rv.Bytes()), nil
}

// Unmarshal implements [Codec]. It copies data.
func (Raw) Unmarshal(data []byte, v any) error {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() || !isRaw(rv.Type().Elem()) {
		return fmt.Errorf("cache: Raw restores []byte and string, not a %T", v)
	}
	if rv = rv.Elem(); rv.Kind() == reflect.String {
		rv.SetString(string(data))
	} else {
		rv.SetBytes(append([]byte{}, data...))
	}
	return nil
}

func isRaw(t reflect.Type) bool {
	return t.Kind() == reflect.String || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}

// JSON stores values as encoding/json writes them: readable with redis-cli and from any
// language, larger and slower than [MsgPack]. It loses unexported fields, the monotonic
// part of a time, and the types in an interface.
type JSON struct{}

// ID implements [Codec].
func (JSON) ID() byte { return jsonID }

// Marshal implements [Codec].
func (JSON) Marshal(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("cache: encoding %T as JSON: %w", v, err)
	}
	return b, nil
}

// Unmarshal implements [Codec]. It returns [ErrDamaged] for bytes that are not
// JSON, or not the JSON of such a value.
func (JSON) Unmarshal(data []byte, v any) error {
	return decoding("JSON", v, func() error { return json.Unmarshal(data, v) })
}

// decoding runs a decoder, and turns its error or panic into ErrDamaged. Bytes from Redis
// must never end the process, and a decoder or a user's own method may panic.
func decoding(format string, v any, decode func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: decoding %s into %T panicked: %v", ErrDamaged, format, v, p)
		}
	}()
	if err := decode(); err != nil {
		return fmt.Errorf("%w: decoding %s into %T: %w", ErrDamaged, format, v, err)
	}
	return nil
}
