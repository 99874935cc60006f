package transport_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stampedeguard/stampede/middleware/transport"
)

func TestStalePartIsValidated(t *testing.T) {
	withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
		ask(t, a, at, "Range", "bytes=0-5")
		time.Sleep(61 * time.Second)
		r.headers = []string{"X-New", "1", "Set-Cookie", "sid=1"}
		got := ask(t, a, at, "Range", "bytes=2-4")
		wantPart(t, got, "234", "bytes 2-4/10")
		wantCacheStatus(t, got, "fwd=stale", "fwd-status=304", "stored")
		if got.Header.Get("X-New") != "1" || got.Header.Get("Set-Cookie") != "sid=1" {
			t.Errorf("header %v", got.Header)
		}
		r.wantLast(t, 2, "If-None-Match", `"1"`, "Range", "bytes=2-4")
		got = ask(t, a, at, "Range", "bytes=0-5") // all of the part is fresh again
		wantPart(t, got, "012345", "bytes 0-5/10")
		wantCacheStatus(t, got, "hit")
		if got.Header.Get("X-New") != "1" || got.Header.Get("Set-Cookie") != "" {
			t.Errorf("header %v", got.Header)
		}
		r.wantLast(t, 2)
		ask(t, a, at, "Range", "bytes=0-5", "Cache-Control", "no-cache")
		r.wantLast(t, 3, "If-None-Match", `"1"`)
		ask(t, a, at, "Range", "bytes=5-7") // the part lacks bytes of it
		r.wantLast(t, 4, "If-None-Match", "")
	})
}

func TestStaleWholeIsValidatedForARange(t *testing.T) {
	withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
		r.headers = []string{"Content-Digest", "sha-256=:AA==:"}
		ask(t, a, at)
		time.Sleep(61 * time.Second)
		got := ask(t, a, at, "Range", "bytes=2-4")
		wantPart(t, got, "234", "bytes 2-4/10")
		wantCacheStatus(t, got, "fwd-status=304")
		if got.Header.Get("Content-Digest") != "" {
			t.Error("the digest of the whole is on a part")
		}
		r.wantLast(t, 2, "If-None-Match", `"1"`, "Range", "bytes=2-4")
		wantAnswer(t, ask(t, a, at), 200, digits) // it is fresh again
		wantPart(t, ask(t, a, at, "Range", "bytes=-1"), "9", "bytes 9-9/10")
		r.wantLast(t, 2)
		time.Sleep(61 * time.Second)
		r.content, r.etag = "abcdefghij", `"2"`
		wantPart(t, ask(t, a, at, "Range", "bytes=2-4"), "cde", "bytes 2-4/10")
		wantPart(t, ask(t, a, at, "Range", "bytes=3-4"), "de", "bytes 3-4/10") // of the new part
		r.wantLast(t, 3)
		wantAnswer(t, ask(t, a, at), 200, "abcdefghij")
	})
}

// A client with a part of the old version never gets a part of the new one.
func TestValidationOfAPartKeepsIfRange(t *testing.T) {
	withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
		ask(t, a, at, "Range", "bytes=0-5")
		time.Sleep(61 * time.Second)
		wantPart(t, ask(t, a, at, "Range", "bytes=2-4", "If-Range", `"1"`), "234", "bytes 2-4/10")
		r.wantLast(t, 2, "If-None-Match", `"1"`, "If-Range", `"1"`)
		time.Sleep(61 * time.Second)
		r.content, r.etag = "abcdefghij", `"2"`
		wantAnswer(t, ask(t, a, at, "Range", "bytes=2-4", "If-Range", `"1"`), 200, "abcdefghij")
		wantAnswer(t, ask(t, a, at), 200, "abcdefghij") // the 200 was stored
		r.wantLast(t, 3)
	})
}

func TestPartOfAnotherVersionReplacesAStalePart(t *testing.T) {
	for says, calls := range map[string]int{"max-age=60": 2, "no-store": 4} {
		withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
			ask(t, a, at, "Range", "bytes=0-5")
			time.Sleep(61 * time.Second)
			r.content, r.etag, r.says = "abcdefghij", `"2"`, says
			wantPart(t, ask(t, a, at, "Range", "bytes=2-4"), "cde", "bytes 2-4/10")
			wantPart(t, ask(t, a, at, "Range", "bytes=2-4"), "cde", "bytes 2-4/10")
			wantPart(t, ask(t, a, at, "Range", "bytes=3-4"), "de", "bytes 3-4/10")
			r.wantLast(t, calls, "If-None-Match", map[int]string{2: `"1"`}[calls])
		})
	}
}

// A 304 may say that the part is not to be stored any more.
func TestRenewedPartIsJudgedAgain(t *testing.T) {
	withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
		ask(t, a, at, "Range", "bytes=0-5")
		time.Sleep(61 * time.Second)
		r.says = "no-store"
		for n := range 2 {
			wantPart(t, ask(t, a, at, "Range", "bytes=2-4"), "234", "bytes 2-4/10")
			r.wantLast(t, 2+n, "If-None-Match", map[int]string{0: `"1"`}[n])
		}
	})
}

func TestNotModifiedOfAnotherPartIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		base := inMemory(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if calls++; r.Header.Get("If-None-Match") != "" {
				w.Header().Set("Etag", `"2"`)
				w.WriteHeader(304)
				return
			}
			serving(digits, `"1"`)(w, r)
		}))
		a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Base = base })
		ask(t, a, at, "Range", "bytes=0-5")
		time.Sleep(61 * time.Second)
		wantPart(t, ask(t, a, at, "Range", "bytes=2-4"), "234", "bytes 2-4/10")
		if calls != 3 {
			t.Errorf("%d calls", calls)
		}
	})
}

// An upstream that answers 304 once more does not give the bytes of one version another's ETag.
func TestNotModifiedWithoutAConditionRenewsNoPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		base := inMemory(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if calls++; calls > 1 {
				w.Header().Set("Etag", `"2"`)
				w.WriteHeader(304)
				return
			}
			serving(digits, `"1"`)(w, r)
		}))
		a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Base = base })
		ask(t, a, at, "Range", "bytes=0-5")
		time.Sleep(61 * time.Second)
		wantAnswer(t, ask(t, a, at, "Range", "bytes=2-4"), 304, "")
		if calls != 3 {
			t.Errorf("%d calls", calls)
		}
	})
}

// Some servers give compressed content the ETag of the plain one, and send parts of the plain one.
func TestPartGivesWayToAWholeOfAnotherLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, open := &resource{content: digits, etag: `"1"`, says: "max-age=60"}, memoryFleet(t)
		coded := &resource{content: "coded", etag: `"1"`, says: "max-age=1", headers: []string{"Content-Encoding", "x"}}
		a := newTransport(t, open(), func(o *transport.Options) { o.Base = inMemory(plain) })
		b := newTransport(t, open(), func(o *transport.Options) { o.Base = inMemory(coded) })
		ask(t, a, at, "Range", "bytes=0-3", "Accept-Encoding", "x")
		wantAnswer(t, ask(t, b, at, "Accept-Encoding", "x"), 200, "coded")
		synctest.Wait() // it is stored
		for range 2 {
			wantAnswer(t, ask(t, b, at, "Range", "bytes=0-3", "Accept-Encoding", "x"), 206, "code")
			time.Sleep(2 * time.Second)
		}
	})
}

func TestStalePartStandsInForAnErrorIfItSaysSo(t *testing.T) {
	for says, status := range map[string]int{"max-age=60": 503, "max-age=60, stale-if-error=600": 206, "max-age=60, stale-if-error=600, must-revalidate": 503} {
		synctest.Test(t, func(t *testing.T) {
			down := false
			base := inMemory(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if down {
					w.WriteHeader(503)
					return
				}
				serving(digits, `"1"`, "Cache-Control", says, "Content-Digest", "sha-256=:AA==:")(w, r)
			}))
			a := newTransport(t, memoryFleet(t)(), func(o *transport.Options) { o.Base = base })
			ask(t, a, at, "Range", "bytes=0-5")
			ask(t, a, at+"?whole")
			time.Sleep(61 * time.Second)
			for _, url := range []string{at, at + "?whole"} {
				down = true
				got := ask(t, a, url, "Range", "bytes=2-4")
				if got.StatusCode != status || status == 206 && got.body != "234" || got.Header.Get("Content-Digest") != "" {
					t.Errorf("%s: %d %q %v", says, got.StatusCode, got.body, got.Header)
				}
				down = false
				wantPart(t, ask(t, a, url, "Range", "bytes=2-4"), "234", "bytes 2-4/10")
			}
		})
	}
}

func TestInvalidationDeletesAStalePart(t *testing.T) {
	withResource(t, func(t *testing.T, r *resource, a *transport.Transport) {
		ask(t, a, at, "Range", "bytes=0-5")
		time.Sleep(61 * time.Second)
		askWith(t, a, "PUT", at)
		ask(t, a, at, "Range", "bytes=2-4")
		r.wantLast(t, 3, "If-None-Match", "")
	})
}
