package store_test

import (
	"testing"
	"testing/synctest"

	"github.com/stampedeguard/stampede/internal/store"
)

func TestLossOfALeaseIsToldOnce(t *testing.T) {
	for name, late := range map[string]bool{"asked before": false, "asked after": true} {
		synctest.Test(t, func(t *testing.T) {
			l, told := &store.Lease{}, make(chan struct{}, 10)
			tell := func() { told <- struct{}{} }
			if !late {
				l.OnLost(tell)
			}
			if synctest.Wait(); l.IsLost() || len(told) > 0 {
				t.Errorf("%s: lost from the start", name)
			}
			l.Lose()
			l.Lose()
			if late {
				l.OnLost(tell)
			}
			if synctest.Wait(); !l.IsLost() || len(told) != 1 {
				t.Errorf("%s: lost=%v, told %d times", name, l.IsLost(), len(told))
			}
		})
	}
}

func TestFeedIsUpInOneEpochAfterAnother(t *testing.T) {
	var fs store.Feeds
	early, first := fs.Open(func(store.Invalidation) {})
	if !first || early.Epoch() != 0 {
		t.Fatalf("first=%v, epoch %d", first, early.Epoch())
	}
	fs.Up(fs.Downs())
	one := early.Epoch()
	fs.Up(fs.Downs()) // which changes nothing
	late, first := fs.Open(func(store.Invalidation) {})
	if one == 0 || early.Epoch() != one || late.Epoch() != one || first {
		t.Fatalf("epochs %d, %d and %d, first=%v", one, early.Epoch(), late.Epoch(), first)
	}
	looked := fs.Downs()
	fs.Down()
	if fs.Up(looked); early.Epoch() != 0 {
		t.Error("a feed is up by a look from before it went down")
	}
	fs.Up(fs.Downs())
	if two := early.Epoch(); two == 0 || two == one {
		t.Errorf("epoch %d after %d", two, one)
	}
	late.Close()
	if fs.Up(fs.Downs()); late.Epoch() != 0 {
		t.Error("a closed feed is up")
	}
}
