package main

import "time"

var Percentile = percentile

func TickOf(span time.Duration, n int) time.Duration { return tickOf(span, n) }

// Commands returns the names of the commands in the bytes written, in pieces.
func Commands(pieces ...string) []string {
	var names []string
	p := commandParser{command: func(name string) { names = append(names, name) }}
	for _, piece := range pieces {
		p.feed([]byte(piece))
	}
	return names
}
