package guard_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A fetch itself decides how its value may be used past its TTL.
func TestStaleUse(t *testing.T) {
	for name, c := range map[string]struct {
		use       guard.StaleUse
		ttl       time.Duration
		after     time.Duration
		told      bool // the fetch is given the old value
		onFailure bool // callers are, when it fails
	}{
		"only if error":                 {guard.OnlyIfError, time.Second, 2 * time.Second, true, true},
		"only if error, over":           {guard.OnlyIfError, time.Second, time.Minute, false, false},
		"only validate":                 {guard.OnlyValidate, time.Second, 2 * time.Second, true, false},
		"only validate, never fresh":    {guard.OnlyValidate, 0, 0, true, false},
		"only validate, over":           {guard.OnlyValidate, time.Second, time.Minute, false, false},
		"never fresh, to be served":     {guard.ServeStale, 0, time.Second, false, false},
		"only validate, negative fresh": {guard.OnlyValidate, -time.Second, time.Second, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorlds(t, func(w *world) {
				fleet := w.fleet(2, policy(func(p *guard.Policy) { p.Stale = time.Second }))
				ctx := context.Background()
				first, err := fleet[0].Load(ctx, "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
					f.TTL, f.StaleFor, f.StaleUse = c.ttl, 10*time.Second, c.use
					return "old", nil
				})
				if err != nil || first.Value != "old" {
					w.Fatalf("%+v, %v", first, err)
				}
				time.Sleep(c.after)
				var told *string
				boom := errors.New("boom")
				got, err := fleet[1].Load(ctx, "k", func(_ context.Context, f *guard.Fill[string]) (string, error) {
					told = f.Stale
					return "", boom
				})
				if (told != nil) != c.told {
					w.Errorf("the fetch was told %v", told)
				}
				if c.onFailure != (err == nil) || c.onFailure && (got.Value != "old" || got.Source != guard.Stale) {
					w.Errorf("%+v, %v", got, err)
				}
			})
		})
	}
}

func TestReloadFetchesAnewAndSaysForHowLong(t *testing.T) {
	inWorlds(t, func(w *world) {
		fleet := w.fleet(2, policy())
		o := &origin{}
		callers(fleet[:1], 1, "k", o.fetch)
		var told *string
		r, err := fleet[1].Load(context.Background(), "k", func(ctx context.Context, f *guard.Fill[string]) (string, error) {
			told, f.TTL = f.Stale, time.Hour
			return o.fetch(ctx)
		}, guard.MaxAge(0))
		if err != nil || r.Value != "v2" || r.Source != guard.Fetched || told == nil || *told != "v1" {
			w.Fatalf("%+v, %v, told %v", r, err, told)
		}
		time.Sleep(59 * time.Minute)
		if r, err := fleet[0].Peek(context.Background(), "k"); err != nil || r.Value != "v2" || r.TTL == 0 {
			w.Errorf("%+v, %v", r, err)
		}
	})
}
