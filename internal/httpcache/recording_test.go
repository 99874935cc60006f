package httpcache_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/internal/httpcache"
)

func TestReadersReadAtTheirOwnPace(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 10_000)
	for name, write := range map[string]func(r *httpcache.Recording) error{
		"written": func(r *httpcache.Recording) error {
			for p := []byte(body); len(p) > 0; p = p[min(len(p), 777):] {
				if _, err := r.Write(p[:min(len(p), 777)]); err != nil {
					return err
				}
			}
			return nil
		},
		"recorded, size known": func(r *httpcache.Recording) error {
			return r.Record(strings.NewReader(body), int64(len(body)))
		},
		"recorded, size unknown": func(r *httpcache.Recording) error {
			return r.Record(iotest.HalfReader(strings.NewReader(body)), -1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := httpcache.NewRecording(len(body))
			var wg sync.WaitGroup
			read := func(size int) {
				rd := r.NewReader()
				wg.Go(func() {
					got, err := io.ReadAll(reading{rd, size})
					if string(got) != body || err != nil {
						t.Errorf("in steps of %d: %d bytes, %v", size, len(got), err)
					}
				})
			}
			for _, size := range []int{1, 1000, 1 << 20} {
				read(size)
			}
			idle := r.NewReader() // holds up nothing
			if err := write(r); err != nil {
				t.Error(err)
			}
			r.End(nil)
			read(5000)
			wg.Wait()
			if idle.Close() {
				t.Error("a kept recording needs its reader")
			}
			if kept, ok := r.Kept(); !ok || string(kept) != body {
				t.Errorf("%d bytes were kept, %v", len(kept), ok)
			}
		})
	}
}

// A reading is a reader that reads in small steps.
type reading struct {
	rd   *httpcache.Reader
	size int
}

// Read implements [io.Reader].
func (r reading) Read(p []byte) (int, error) {
	return r.rd.Read(context.Background(), p[:min(len(p), r.size)])
}

func TestPacedWriterWaitsForItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
		r := httpcache.NewRecording(1 << 20)
		rd := r.NewReader()
		if !r.Pace() {
			t.Error("a recording with a reader has none")
		}
		var wg sync.WaitGroup
		wg.Go(func() { r.End(r.Record(bytes.NewReader(body), -1)) })
		synctest.Wait()
		if n := r.Size(); n > 100<<10 {
			t.Errorf("the writer is %d bytes ahead", n)
		}
		got, err := io.ReadAll(reading{rd, 1000})
		wg.Wait()
		if !bytes.Equal(got, body) || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if _, ok := r.Kept(); ok {
			t.Error("a paced recording was kept")
		}
	})
}

func TestPacingDuringARecordLosesNothing(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	for at := range 20 {
		r := httpcache.NewRecording(1 << 20)
		rd := r.NewReader()
		var wg sync.WaitGroup
		wg.Go(func() {
			reads := 0
			r.End(r.Record(readerFunc(func(p []byte) (int, error) {
				if reads++; reads == at+1 {
					r.Pace()
				}
				n := min(len(p), len(body)-int(r.Size()), 9000)
				copy(p, body[r.Size():])
				if n == 0 {
					return 0, io.EOF
				}
				return n, nil
			}), -1))
		})
		got, err := io.ReadAll(reading{rd, 4000})
		wg.Wait()
		if !bytes.Equal(got, body) || err != nil {
			t.Errorf("paced at read %d: %d bytes, %v", at, len(got), err)
		}
	}
}

type readerFunc func(p []byte) (int, error)

// Read implements [io.Reader].
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestPacedWriterEndsWithItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := httpcache.NewRecording(10)
		rd := r.NewReader()
		r.Pace()
		done := make(chan error)
		go func() {
			_, err := r.Write(make([]byte, 1<<20))
			done <- err
		}()
		synctest.Wait()
		if !rd.Close() {
			t.Error("the recording goes on without a reader")
		}
		if err := <-done; !errors.Is(err, httpcache.ErrNoReader) {
			t.Errorf("the writer got %v", err)
		}
		if err := r.Flush(); !errors.Is(err, httpcache.ErrNoReader) {
			t.Errorf("a flush got %v", err)
		}
		if r.Pace() {
			t.Error("there is a reader")
		}
	})
}

func TestRecordSaysWhenTheBodyIsTooLong(t *testing.T) {
	for size := range 12 {
		r := httpcache.NewRecording(10)
		rd := r.NewReader()
		body := strings.Repeat("x", size)
		src := strings.NewReader(body)
		err := r.Record(src, -1)
		if tooLong := errors.Is(err, httpcache.ErrTooLong); tooLong != (size > 10) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err != nil {
			r.Pace()
			err = r.Record(src, -1)
		}
		r.End(err)
		if got, err := io.ReadAll(reading{rd, 100}); string(got) != body || err != nil {
			t.Errorf("%d bytes: read %q, %v", size, got, err)
		}
	}
}

func TestReaderHeedsItsContextAndItsClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := httpcache.NewRecording(10)
		rd := r.NewReader()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := rd.Read(ctx, make([]byte, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after its context's end it got %v", err)
		}
		time.AfterFunc(time.Second, func() { rd.Close() })
		if _, err := rd.Read(t.Context(), make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("after its close it got %v", err)
		}
		broken := errors.New("broken")
		rd = r.NewReader()
		_, _ = r.Write([]byte("a"))
		r.End(broken)
		if got, err := io.ReadAll(reading{rd, 10}); string(got) != "a" || !errors.Is(err, broken) {
			t.Errorf("of a broken recording it got %q, %v", got, err)
		}
	})
}

func TestDesertedRecordingTakesNoReader(t *testing.T) {
	for name, desert := range map[string]func(*httpcache.Recording) bool{
		"paced without a reader": func(r *httpcache.Recording) bool { return !r.Pace() },
		"its last reader left": func(r *httpcache.Recording) bool {
			rd := r.NewReader()
			return r.Pace() && rd.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := httpcache.NewRecording(10)
			if !desert(r) {
				t.Fatal("it goes on")
			}
			if r.NewReader() != nil {
				t.Error("a reader has joined")
			}
		})
	}
}
