package cache_test

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/redistest"
)

// What is read into memory that was given back is all there is, and the payloads of
// the readings that were in it before stay what they were.
func TestRecycledReadingsHoldOnlyWhatIsReadNext(t *testing.T) {
	client := redistest.RunStandalone(t, redistest.StandaloneConfig{}).Client()
	store, err := cache.NewRedis(client, cache.Options{Namespace: "slab"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = "k" + strconv.Itoa(i)
		e := &cache.Entry{Kind: cache.Value, TTL: time.Hour, FreshFor: time.Hour, Payload: []byte("value " + strconv.Itoa(i))}
		if err := store.Set(t.Context(), keys[i], e); err != nil {
			t.Fatal(err)
		}
	}
	read := func(keys []string) []cache.ReadResult {
		t.Helper()
		results := store.ReadMany(t.Context(), keys)
		for _, r := range results {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		return results
	}
	store.Recycle(read(keys)) // learns the ages
	results := read(keys)
	for _, r := range results {
		if _, err := r.Reading.Memo(func(r *cache.Reading) (any, error) { return string(r.Entry.Payload), nil }); err != nil {
			t.Fatal(err)
		}
	}
	payloads := make([][]byte, len(results))
	for i, r := range results {
		payloads[i] = r.Reading.Entry.Payload
	}
	store.Recycle(results)
	for i, r := range results {
		if r != (cache.ReadResult{}) {
			t.Fatalf("result %d is still %+v", i, r)
		}
	}
	for i, r := range read([]string{"none", keys[7], "none", keys[8]}) {
		v, _ := r.Reading.Memo(func(r *cache.Reading) (any, error) { return string(r.Entry.Payload), nil })
		want := [...]string{"", "value 7", "", "value 8"}[i]
		if v != want || r.Reading.Found != (want != "") || (want == "") != (r.Reading.Seen == "") {
			t.Errorf("%d: %q, found %t, seen %q", i, v, r.Reading.Found, r.Reading.Seen)
		}
	}
	for i, p := range payloads {
		if want := []byte("value " + strconv.Itoa(i)); !bytes.Equal(p, want) {
			t.Fatalf("payload %d became %q", i, p)
		}
	}
}
