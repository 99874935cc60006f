package work

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A meter counts the server's work between two looks at it.
type meter struct {
	client   *redis.Client
	commands float64
	bytes    float64
	own      float64 // bytes of the first look's reply, which are sent after it
}

// startMeter takes the first look.
func startMeter(ctx context.Context, client *redis.Client) (*meter, error) {
	m := &meter{client: client}
	info, err := client.Info(ctx, "stats", "commandstats").Result()
	if err != nil {
		return nil, err
	}
	m.commands, m.bytes = counts(info)
	m.own = float64(len(info))
	return m, nil
}

// read takes the second look: commands executed, those by scripts included, and
// bytes in both directions.
func (m *meter) read(ctx context.Context) (commands, bytes float64, err error) {
	info, err := m.client.Info(ctx, "stats", "commandstats").Result()
	if err != nil {
		return 0, 0, err
	}
	commands, bytes = counts(info)
	return commands - m.commands, bytes - m.bytes - m.own, nil
}

// counts reads INFO. The commands by which this package looks, those that set up
// a connection and signs of life don't count.
func counts(info string) (commands, bytes float64) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch {
		case name == "total_net_input_bytes" || name == "total_net_output_bytes":
			n, _ := strconv.ParseFloat(value, 64)
			bytes += n
		case strings.HasPrefix(name, "cmdstat_"):
			switch strings.TrimPrefix(name, "cmdstat_") {
			case "info", "hello", "ping", "client|setinfo", "client|tracking", "client|maint_notifications", "flushall", "config|resetstat":
				continue
			}
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			n, _ := strconv.ParseFloat(calls, 64)
			commands += n
		}
	}
	return commands, bytes
}
