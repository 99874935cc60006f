package cache_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/stampedeguard/stampede/cache"
)

func TestCompressGoesThereAndBack(t *testing.T) {
	for _, n := range []int{0, 1, 31, 2 << 10, 1 << 20} {
		payload := records(n, json.Marshal)
		packed := cache.Compress(payload)
		got, err := cache.Decompress(packed, len(payload))
		if err != nil || !bytes.Equal(got, payload) {
			t.Errorf("%d bytes: came back as %d bytes, error %v", n, len(got), err)
		}
		if n >= 2<<10 && len(packed) > n/2 {
			t.Errorf("%d bytes of records compress to %d", n, len(packed))
		}
	}
}

func TestDecompressRefusesMoreThanTheLimitBeforeAllocating(t *testing.T) {
	bomb := cache.Compress(make([]byte, 64<<20))
	lie := append([]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, "tiny"...) // says 4 GiB
	for _, payload := range [][]byte{bomb, lie} {
		allocated := allocatedBy(func() {
			if _, err := cache.Decompress(payload, 1<<20); !errors.Is(err, cache.ErrDamaged) {
				t.Errorf("error %v, want ErrDamaged", err)
			}
		})
		if allocated > 64<<10 {
			t.Errorf("%d bytes were allocated to refuse %d bytes", allocated, len(payload))
		}
	}
}

func TestDecompressOfDamagedBytesIsAnErrorOrALie(t *testing.T) {
	payload := records(4<<10, json.Marshal)
	packed := cache.Compress(payload)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		b := bytes.Clone(packed)
		for range 1 + rng.IntN(4) {
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		}
		b = b[:len(b)-rng.IntN(3)]
		got, err := cache.Decompress(b, 1<<20)
		if err != nil && !errors.Is(err, cache.ErrDamaged) {
			t.Fatalf("error %v, want ErrDamaged", err)
		}
		if len(got) > 1<<20 {
			t.Fatalf("expanded to %d bytes beyond the limit", len(got))
		}
	}
}

func TestCompressMayBeUsedByManyAtOnce(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			payload := bytes.Repeat([]byte{byte(i), 'x', 'y'}, 5_000)
			for range 50 {
				got, err := cache.Decompress(cache.Compress(payload), len(payload))
				if err != nil || !bytes.Equal(got, payload) {
					t.Errorf("goroutine %d got somebody else's bytes, error %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkCompression is what the choice of a format in docs/decisions.md rests
// on: for each size, format and direction MB/s of uncompressed bytes, and the
// compressed size in percent.
//
//	go test ./cache -run '^$' -bench Compression
func BenchmarkCompression(b *testing.B) {
	formats := []struct {
		name string
		pack func([]byte) []byte
		open func([]byte) ([]byte, error)
	}{
		{"s2", cache.Compress, func(p []byte) ([]byte, error) { return cache.Decompress(p, 8<<20) }},
		{"s2-better", func(p []byte) []byte { return s2.EncodeBetter(nil, p) }, func(p []byte) ([]byte, error) { return cache.Decompress(p, 8<<20) }},
		zstdFormat(b, "zstd-fastest", zstd.SpeedFastest),
		zstdFormat(b, "zstd-default", zstd.SpeedDefault),
	}
	codecs := []struct {
		name   string
		encode func(any) ([]byte, error)
	}{{"msgpack", msgpack.Marshal}, {"json", json.Marshal}}
	for _, codec := range codecs {
		for _, size := range []int{2 << 10, 16 << 10, 64 << 10, 1 << 20} {
			payload := records(size, codec.encode)
			for _, f := range formats {
				packed := f.pack(payload)
				percent := 100 * float64(len(packed)) / float64(len(payload))
				name := fmt.Sprintf("%s/%dKiB/%s/", codec.name, size>>10, f.name)
				b.Run(name+"pack", func(b *testing.B) {
					b.SetBytes(int64(len(payload)))
					b.ReportAllocs()
					for b.Loop() {
						f.pack(payload)
					}
					b.ReportMetric(percent, "%size")
				})
				b.Run(name+"open", func(b *testing.B) {
					b.SetBytes(int64(len(payload)))
					b.ReportAllocs()
					for b.Loop() {
						if _, err := f.open(packed); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

func zstdFormat(b *testing.B, name string, level zstd.EncoderLevel) (f struct {
	name string
	pack func([]byte) []byte
	open func([]byte) ([]byte, error)
},
) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(1))
	if err != nil {
		b.Fatal(err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { enc.Close(); dec.Close() })
	f.name = name
	f.pack = func(p []byte) []byte { return enc.EncodeAll(p, nil) }
	f.open = func(p []byte) ([]byte, error) { return dec.DecodeAll(p, nil) }
	return f
}

// records encodes made-up rows of a shop's catalogue, cut to n bytes: keys and
// words repeat, numbers and ids don't.
func records(n int, encode func(any) ([]byte, error)) []byte {
	type row struct {
		ID       string
		Name     string
		Price    float64
		Stock    int
		Updated  time.Time
		Tags     []string
		Supplier map[string]string
	}
	words := []string{"anchor", "bracket", "copper", "dowel", "enamel", "flange", "gasket", "hinge", "insert", "joint"}
	rng := rand.New(rand.NewPCG(uint64(n), 7))
	word := func() string { return words[rng.IntN(len(words))] }
	var b []byte
	for len(b) < n {
		one, err := encode(row{
			ID:       fmt.Sprintf("%016x", rng.Uint64()),
			Name:     word() + " " + word() + " " + word(),
			Price:    float64(rng.IntN(1_000_000)) / 100,
			Stock:    rng.IntN(500),
			Updated:  time.Unix(1_700_000_000+rng.Int64N(30_000_000), 0).UTC(),
			Tags:     []string{word(), word()},
			Supplier: map[string]string{"name": word() + " works", "country": word()},
		})
		if err != nil {
			panic(err)
		}
		b = append(b, one...)
	}
	return b[:n]
}
