package main

import (
	"encoding/json"
	"io"
	"math"
	"time"
)

// A row is the report about a scene. Times are in milliseconds. Every field is
// always there; a field that doesn't apply is 0.
type row struct {
	Name          string  `json:"name"`
	Mode          string  `json:"mode"`
	Procs         int     `json:"procs"`
	Callers       int     `json:"callers"` // in each process
	Fetches       int     `json:"fetches"` // that reached the origin
	P50           float64 `json:"p50_ms"`
	P99           float64 `json:"p99_ms"`
	Last          float64 `json:"last_ms"`
	Overhead      float64 `json:"overhead_ms"`
	RedisCommands int64   `json:"redis_commands"`
	Takeover      float64 `json:"takeover_ms"`
	Errors        int     `json:"errors"` // callers that got one
}

func rowsOf(outcomes []*outcome) []row {
	rows := make([]row, 0, len(outcomes))
	for _, o := range outcomes {
		sorted := o.latencies()
		r := row{
			Name: o.name, Mode: o.mode, Procs: o.procs, Callers: o.callers,
			Fetches: len(o.fetches),
			P50:     ms(percentile(sorted, 50)), P99: ms(percentile(sorted, 99)),
			Last: ms(percentile(sorted, 100)), Overhead: ms(o.overhead()),
			RedisCommands: o.redisCommands, Errors: o.errors(),
		}
		if o.kill {
			takeover, _ := o.takeover()
			r.Takeover = ms(takeover)
		}
		rows = append(rows, r)
	}
	return rows
}

// ms is in milliseconds, to the hundredth.
func ms(d time.Duration) float64 {
	return math.Round(float64(d)/float64(10*time.Microsecond)) / 100
}

func writeJSON(w io.Writer, rows []row) error {
	return json.NewEncoder(w).Encode(struct {
		Scenes []row `json:"scenes"`
	}{rows})
}
