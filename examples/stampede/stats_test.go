package main_test

import (
	"slices"
	"testing"
	"time"

	main "github.com/stampedeguard/stampede/examples/stampede"
)

func TestPercentileIsTheNearestRank(t *testing.T) {
	upTo := func(n int) []time.Duration {
		var d []time.Duration
		for i := range n {
			d = append(d, time.Duration(i+1))
		}
		return d
	}
	for _, c := range []struct {
		n    int
		p    float64
		want time.Duration
	}{
		{0, 50, 0},
		{1, 50, 1},
		{1, 99, 1},
		{2, 50, 1},
		{3, 50, 2},
		{100, 50, 50},
		{100, 99, 99},
		{101, 99, 100},
		{1000, 99, 990},
		{1000, 100, 1000},
		{5, 0, 1},
	} {
		if got := main.Percentile(upTo(c.n), c.p); got != c.want {
			t.Errorf("p%v of 1…%d is %d, want %d", c.p, c.n, got, c.want)
		}
	}
}

func TestTicksAreRoundAndCoverTheSpan(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		span time.Duration
		n    int
		want time.Duration
	}{
		{0, 7, ms},
		{7 * ms, 7, ms},
		{8 * ms, 7, 2 * ms},
		{247 * ms, 7, 50 * ms},
		{247 * ms, 4, 100 * ms},
		{701 * ms, 7, 200 * ms},
		{60 * time.Second, 4, 20 * time.Second},
	} {
		if got := main.TickOf(c.span, c.n); got != c.want {
			t.Errorf("%d ticks over %v are %v apart, want %v", c.n, c.span, got, c.want)
		}
	}
}

func TestMeterCountsEachCommandHoweverItIsCut(t *testing.T) {
	const written = "*1\r\n$4\r\nping\r\n" +
		"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$14\r\n*1\r\n$4\r\nping\r\n\r\n" + // a value that looks like a command
		"*2\r\n$3\r\nget\r\n$0\r\n\r\n" +
		"*11\r\n$9\r\nsubscribe\r\n"
	want := []string{"ping", "SET", "get", "subscribe"}
	for size := 1; size <= len(written); size++ {
		var pieces []string
		for piece := range slices.Chunk([]byte(written), size) {
			pieces = append(pieces, string(piece))
		}
		if got := main.Commands(pieces...); !slices.Equal(got, want) {
			t.Fatalf("in pieces of %d bytes: %q, want %q", size, got, want)
		}
	}
}
