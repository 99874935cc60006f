package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Commands returns how often the server has executed each command since its
// start or the last [Server.ResetCommands], by lower-case name with any
// subcommand after a bar ("client|setinfo"), from INFO commandstats.
//
// Redis counts the commands that scripts run as well as those that clients
// send, of all clients and of this package (whose own are INFO and, for
// ResetCommands, CONFIG RESETSTAT). To count what one client sent, use a
// [Counter].
func (s *Server) Commands(ctx context.Context) (map[string]int64, error) {
	info, err := s.info(ctx, "commandstats")
	if err != nil {
		return nil, err
	}
	counts := make(map[string]int64, len(info))
	for key, value := range info {
		name, ok := strings.CutPrefix(key, "cmdstat_")
		if !ok {
			continue
		}
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("redistest: INFO commandstats: %s: %w", key, err)
		}
		counts[name] = n
	}
	return counts, nil
}

// ResetCommands sets the counts of [Server.Commands] to zero.
func (s *Server) ResetCommands(ctx context.Context) error {
	_, err := s.do(ctx, "CONFIG", "RESETSTAT")
	return err
}

// info returns the fields of one section of INFO.
func (s *Server) info(ctx context.Context, section string) (map[string]string, error) {
	reply, err := s.do(ctx, "INFO", section)
	if err != nil {
		return nil, err
	}
	text, ok := reply.(string)
	if !ok {
		return nil, fmt.Errorf("redistest: INFO %s: reply is a %T", section, reply)
	}
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields, nil
}

// do sends one command on a connection of its own, without retries: what this
// package asks must neither wait for a pool nor be sent twice.
func (s *Server) do(ctx context.Context, args ...any) (any, error) {
	opt := s.Options()
	opt.Protocol = 2 // no HELLO
	opt.MaxRetries = -1
	opt.DialerRetries = 1
	opt.PoolSize = 1
	opt.ContextTimeoutEnabled = true
	c := redis.NewClient(opt)
	defer c.Close()
	return c.Do(ctx, args...).Result()
}
