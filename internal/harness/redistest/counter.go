package redistest

import (
	"context"
	"maps"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Counter is a go-redis hook that counts the commands its client was asked to
// send, each command of a pipeline or transaction on its own. Add it with
// client.AddHook(counter). The zero value is ready; its methods may be called
// from any goroutine.
//
// It counts a difference that the server's commandstats do not show: a command sent
// by this client, as against one sent by another client or run by a script.
//
// Not counted are retries of a command (go-redis retries beneath its hooks),
// redirections inside a cluster client, and SUBSCRIBE and its relatives, which
// go-redis sends past the hooks.
type Counter struct {
	mu     sync.Mutex
	counts map[string]int64
	trips  int64
}

var _ redis.Hook = (*Counter)(nil)

// Total returns the number of commands sent, without those that set up a
// connection (HELLO, AUTH, SELECT, READONLY, CLIENT SETINFO and the like):
// their number follows from the pool, not from the code under test. All holds
// them too.
func (c *Counter) Total() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var total int64
	for name, n := range c.counts {
		if !handshake[name] {
			total += n
		}
	}
	return total
}

// Count returns how often the named commands were sent, all together. Names
// are as in INFO commandstats: lower case, a subcommand after a bar
// ("client|setinfo").
func (c *Counter) Count(names ...string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var n int64
	for _, name := range names {
		n += c.counts[name]
	}
	return n
}

// All returns the count of each command sent, by name as for [Counter.Count].
func (c *Counter) All() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]int64, len(c.counts))
	maps.Copy(all, c.counts)
	return all
}

// Trips returns how often something was sent and waited for: a pipeline is one,
// whatever is in it. The set-up of a connection counts.
func (c *Counter) Trips() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trips
}

// Reset forgets all counts.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.counts)
	c.trips = 0
}

// DialHook implements [redis.Hook]; it counts nothing.
func (c *Counter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (c *Counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (c *Counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.add(cmds...)
		return next(ctx, cmds)
	}
}

func (c *Counter) add(cmds ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = make(map[string]int64)
	}
	c.trips++
	for _, cmd := range cmds {
		c.counts[commandName(cmd)]++
	}
}

var handshake = map[string]bool{
	"hello": true, "auth": true, "select": true, "readonly": true,
	"client|setname": true, "client|setinfo": true, "client|maint_notifications": true,
}

// containers are the commands that commandstats counts by subcommand.
var containers = map[string]bool{
	"acl": true, "client": true, "cluster": true, "command": true, "config": true,
	"function": true, "latency": true, "memory": true, "module": true, "object": true,
	"pubsub": true, "script": true, "slowlog": true, "xgroup": true, "xinfo": true,
}

func commandName(cmd redis.Cmder) string {
	name := strings.ToLower(cmd.Name())
	if args := cmd.Args(); containers[name] && len(args) > 1 {
		if sub, ok := args[1].(string); ok {
			return name + "|" + strings.ToLower(sub)
		}
	}
	return name
}
