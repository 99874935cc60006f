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
// send, of all clients and of this package (its own are INFO and, for
// ResetCommands, CONFIG RESETSTAT). To count the commands of one client, use a
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
	return infoFields(text), nil
}

func infoFields(text string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields
}

// do sends one command to the server.
func (s *Server) do(ctx context.Context, args ...any) (any, error) {
	c := s.control()
	defer c.Close()
	return c.Do(ctx, args...).Result()
}

// control returns a client for this package's own questions, for the caller to
// close.
func (s *Server) control() *redis.Client { return redis.NewClient(s.controlOptions()) }

// controlOptions are for questions that must neither wait for a connection nor
// be sent twice, and that end with their context.
func (s *Server) controlOptions() *redis.Options {
	opt := s.Options()
	opt.MaxRetries = -1
	opt.DialerRetries = 1
	opt.PoolSize = 1
	opt.ContextTimeoutEnabled = true
	return opt
}
