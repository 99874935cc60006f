package store_test

import (
	"bytes"
	"testing"

	"github.com/stampedeguard/stampede/internal/store"
)

func TestTracedMessageTravelsAsReleasedOfNoToken(t *testing.T) {
	sent := store.Message{Signal: store.Traced, Token: store.Token{7}, Body: bytes.Repeat([]byte{9}, store.TraceSize)}
	b := sent.Encode()
	if b[0] != byte(store.Released) || !bytes.Equal(b[1:1+store.TokenSize], make([]byte, store.TokenSize)) {
		t.Errorf("it travels as % x: a process that does not know it must read a release of no token", b)
	}
	got, err := store.ParseMessage(b)
	if err != nil || got.Signal != store.Traced || got.Token != sent.Token || !bytes.Equal(got.Body, sent.Body) {
		t.Errorf("parsed %+v, error %v, want %+v", got, err, sent)
	}
}
