package middleware_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
	"github.com/stampedeguard/stampede/middleware"
)

// smallRedis evicts entries: the pages of a test need not fit.
func smallRedis(t *testing.T) *redistest.Server {
	return redistest.RunStandalone(t, redistest.StandaloneConfig{Args: []string{"--maxmemory", "32mb", "--maxmemory-policy", "allkeys-lru"}})
}

// The bounds hold for 4,096 pages, and for fewer in a short run: these are many times the
// bounds, too.
func TestManyLargePagesTakeLittleMemory(t *testing.T) {
	const size, reserve, mostAfter, mostDuring = 1 << 20, 4 << 20, 8 << 20, 32 << 20
	pages := 96
	if bounds {
		pages = 4096
	}
	body := bytes.Repeat([]byte("x"), size)
	runs, peak := 0, uint64(0)
	m, err := middleware.New(redisStore(t, smallRedis(t).Addr()), middleware.Options{
		TTL: time.Hour, Policy: func(p *guard.Policy) { p.Reserve.MaxBytes = reserve },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(body)
		if runs++; runs%32 == 0 {
			peak = max(peak, heap())
		}
	}))
	before := heap()
	for i := range pages {
		h.ServeHTTP(&discard{h: http.Header{}}, request(fmt.Sprint("/", i)))
	}
	eventually(t, "all pages are stored", func() bool { return m.Stats().Stored == uint64(pages) })
	after, during := int64(heap())-int64(before), int64(peak)-int64(before)
	t.Logf("%d pages of %d KiB add %d KiB to the heap, and up to %d KiB meanwhile", pages, size>>10, after>>10, during>>10)
	if after > mostAfter || during > mostDuring || runs != pages {
		t.Errorf("%d runs, want %d; the heap grows by %d bytes, want at most %d, and by up to %d meanwhile, want at most %d",
			runs, pages, after, mostAfter, during, mostDuring)
	}
}

// MaxPages bounds the entries in Redis, and the keys that the process remembers.
func TestUniqueQueriesTakeLittleMemory(t *testing.T) {
	const maxPages, mostEntries = 64, 2 * 64
	queries, most := 1024, int64(3<<20)
	if bounds {
		queries, most = 1<<17, 8<<20
	}
	server := smallRedis(t)
	m, err := middleware.New(redisStore(t, server.Addr()), middleware.Options{
		TTL: time.Hour, MaxPages: maxPages, Policy: func(p *guard.Policy) { p.Reserve.MaxBytes = 1 << 20 },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	h, redis := m.Wrap(number()), server.Client()
	before := heap()
	for i := range queries {
		h.ServeHTTP(&discard{h: http.Header{}}, request(fmt.Sprint("/x?", i)))
	}
	added := int64(heap()) - int64(before)
	t.Logf("%d queries add %d KiB to the heap", queries, added>>10)
	if added > most {
		t.Errorf("%d queries add %d bytes to the heap, want at most %d", queries, added, most)
	}
	eventually(t, "the entries of other pages are deleted", func() bool { return redis.DBSize(t.Context()).Val() <= mostEntries })
}
