package nils_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stampedeguard/stampede/internal/nils"
)

func TestNilInAnInterfaceIsFound(t *testing.T) {
	var none *strings.Reader
	var held io.Reader = none
	for name, v := range map[string]any{"nil": nil, "pointer": none, "held": held, "map": map[int]int(nil), "func": (func())(nil)} {
		if !nils.Is(v) {
			t.Errorf("%s is not nil", name)
		}
	}
	for name, v := range map[string]any{"struct": struct{}{}, "pointer": new(int), "number": 0, "map": map[int]int{}, "func": func() {}} {
		if nils.Is(v) {
			t.Errorf("%s is nil", name)
		}
	}
}
