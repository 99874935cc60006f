package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/bench/report"
)

// environment describes the kind of the machine, and nothing that identifies it.
func environment(ctx context.Context, client *redis.Client) (report.Env, error) {
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return report.Env{}, err
	}
	e := report.Env{
		Date: time.Now().Format(time.DateOnly), Go: runtime.Version(), OS: runtime.GOOS, CPU: runtime.GOARCH,
		Cores: runtime.NumCPU(), LoadBefore: load(),
	}
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			e.Redis = strings.TrimSpace(v)
		}
	}
	return e, nil
}

// load is the load average over a minute, where /proc tells it.
func load() float64 {
	var one float64
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	_, _ = fmt.Sscan(string(b), &one)
	return one
}

func toFile(name string, render func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := render(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
