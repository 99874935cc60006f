// Package nils tells an interface that holds a nil pointer from one that holds a
// value. Constructors use it: a nil *T in an interface compares unequal to nil and
// panics at its first use.
package nils

import "reflect"

// Is reports whether v is nil, or an interface that holds a nil pointer, map,
// slice, function or channel.
func Is(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return r.IsNil()
	}
	return false
}
