package stampede_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// quote is a small struct, of about 100 bytes encoded.
type quote struct {
	Pair, Venue, Note string
	Bid, Ask          float64
	At                int64
}

// BenchmarkGetManyWarm compares GetMany of a thousand stored, fresh keys with an
// MGET of as many values of the same size, in turn, and with one whose values are
// decoded by the same codec: ratio and ratio-decoded are those of the medians of calls
// in a row, ratio-alone and ratio-decoded-alone of those that alternate.
func BenchmarkGetManyWarm(b *testing.B) {
	b.Run("string", func(b *testing.B) {
		getManyWarm(b, func(int) string { return string(value[:100]) })
	})
	b.Run("bytes", func(b *testing.B) {
		getManyWarm(b, func(int) []byte { return value[:100] })
	})
	b.Run("struct", func(b *testing.B) {
		getManyWarm(b, func(i int) quote {
			return quote{"EURUSD", "somewhere", "as of close", 1.0842, 1.0844, int64(i)}
		})
	})
}

func getManyWarm[V any](b *testing.B, value func(i int) V) {
	client := redistest.RunStandalone(b, redistest.StandaloneConfig{}).Client()
	g := newGuard[V](b, client)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	keys := make([]string, many)
	for i := range keys {
		keys[i] = key(i)
		payload, err := cache.CodecFor[V]().Marshal(value(i))
		if err := errors.Join(err, g.Set(ctx, keys[i], value(i)), client.Set(ctx, keys[i], payload, 0).Err()); err != nil {
			b.Fatal(err)
		}
	}
	never := func(context.Context, []string) (map[string]V, error) { return nil, errNotStored }
	codec := cache.CodecFor[V]()
	mget := func() error { return client.MGet(ctx, keys...).Err() }
	decoded := func() error {
		payloads, err := client.MGet(ctx, keys...).Result()
		if err != nil {
			return err
		}
		got := make([]V, len(payloads))
		for i, p := range payloads {
			if err := codec.Unmarshal([]byte(p.(string)), &got[i]); err != nil {
				return err
			}
		}
		return nil
	}
	warm := func() error {
		got, err := g.GetMany(ctx, keys, never)
		if err == nil && len(got) != many {
			err = fmt.Errorf("%d values", len(got))
		}
		return err
	}
	inRow, alone := inTurn(b, mget, decoded, warm)
	b.ReportMetric(inRow[0], "ns/MGET")
	b.ReportMetric(inRow[1], "ns/MGET-decoded")
	b.ReportMetric(inRow[2], "ns/GetMany")
	b.ReportMetric(inRow[2]/inRow[0], "ratio")
	b.ReportMetric(inRow[2]/inRow[1], "ratio-decoded")
	b.ReportMetric(alone[2]/alone[0], "ratio-alone")
	b.ReportMetric(alone[2]/alone[1], "ratio-decoded-alone")
}

// BenchmarkGetManyCold fetches (nothing) and stores a thousand keys in one call,
// and counts what is sent at once.
func BenchmarkGetManyCold(b *testing.B) {
	client := redistest.RunStandalone(b, redistest.StandaloneConfig{}).Client()
	g := newGuard[[]byte](b, client)
	sent := &redistest.Counter{}
	client.AddHook(sent)
	fetches, n := 0, 0
	fetch := func(_ context.Context, keys []string) (map[string][]byte, error) {
		fetches++
		got := make(map[string][]byte, len(keys))
		for _, k := range keys {
			got[k] = value[:100]
		}
		return got, nil
	}
	for b.Loop() {
		n++
		keys := make([]string, many)
		for i := range keys {
			keys[i] = "cold:" + strconv.Itoa(n) + ":" + strconv.Itoa(i)
		}
		if got, err := g.GetMany(b.Context(), keys, fetch); err != nil || len(got) != many {
			b.Fatal(len(got), err)
		}
	}
	b.ReportMetric(float64(fetches)/float64(n), "fetches/op")
	b.ReportMetric(float64(sent.Trips())/float64(n), "trips/op")
}
