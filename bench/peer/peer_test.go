package peer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/bench/peer"
	"github.com/stampedeguard/stampede/internal/harness/redistest"
)

// Each adapter fetches a missing value, keeps it, and forgets it when told.
func TestEachSystemFillsHitsAndDeletes(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	for _, s := range peer.All() {
		t.Run(s.Name, func(t *testing.T) {
			if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			c, err := s.Open(peer.Options{Addr: server.Addr(), TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if f, ok := c.(peer.Filler); ok {
				if err := f.Fill(t.Context(), "k", "first"); err != nil {
					t.Fatal(err)
				}
			} else if got, err := c.Get(t.Context(), "k", fetch("first")); got != "first" || err != nil {
				t.Fatalf("of a cold key: %q, %v", got, err)
			}
			if got, err := c.Get(t.Context(), "k", fetch("second")); got != "first" || err != nil {
				t.Fatalf("of a warm key: %q, %v; want the stored value", got, err)
			}
			if err := c.Delete(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			got, err := c.Get(t.Context(), "k", fetch("third"))
			// Redis tells rueidis's client-side cache of the deletion, a moment later.
			for end := time.Now().Add(5 * time.Second); s.Name == "rueidisaside" && got == "first" && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
				got, err = c.Get(t.Context(), "k", fetch("third"))
			}
			switch {
			case s.Limit: // has no way to fetch
				if err == nil {
					t.Fatalf("of a deleted key: %q", got)
				}
			case s.Name == "rockscache": // serves the deleted value once more, by design
			case got != "third" || err != nil:
				t.Fatalf("of a deleted key: %q, %v; want the new value", got, err)
			}
		})
	}
}

func TestEachSystemHandsOutTheFetchsError(t *testing.T) {
	server := redistest.RunStandalone(t, redistest.StandaloneConfig{})
	broken := errors.New("broken")
	for _, s := range peer.All() {
		if s.Limit {
			continue
		}
		c, err := s.Open(peer.Options{Addr: server.Addr(), TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Get(t.Context(), "failing-"+s.Name, func(context.Context) (string, error) { return "", broken })
		if !errors.Is(err, broken) {
			t.Errorf("%s gives %v", s.Name, err)
		}
		c.Close()
	}
}

func TestSystemsAreDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range peer.All() {
		if seen[s.Name] || s.Link == "" {
			t.Errorf("%q has no link or not a name of its own", s.Name)
		}
		seen[s.Name] = true
		if got, err := peer.Named(s.Name); err != nil || got.Name != s.Name {
			t.Errorf("Named(%q): %q, %v", s.Name, got.Name, err)
		}
	}
}

func fetch(value string) peer.Fetch {
	return func(context.Context) (string, error) { return value, nil }
}
