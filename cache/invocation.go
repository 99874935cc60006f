package cache

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// An invocation is a script with its keys and arguments.
type invocation struct {
	script *script
	keys   []string
	args   []any
}

// run carries it out once, by itself.
func (inv *invocation) run(ctx context.Context, client redis.UniversalClient) (any, error) {
	return inv.script.run(ctx, client, inv.keys, inv.args...)
}

// A reply is what a script of a pipeline answered.
type reply struct {
	value any
	err   error // the client's; nothing if it was answered
}

// runMany carries scripts out in one pipeline, each once. Those that the server
// doesn't know, and so hasn't carried out, are sent again, one of each kind with
// its source. It returns an error if none was answered.
func (s *Redis) runMany(ctx context.Context, invs []invocation) ([]reply, error) {
	replies := make([]reply, len(invs))
	places := make([]int, len(invs))
	for i := range places {
		places[i] = i
	}
	err := s.pipelined(ctx, invs, places, replies, false)
	var unknown []int
	for i, r := range replies {
		if redis.HasErrorPrefix(r.err, "NOSCRIPT") {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) > 0 {
		err = s.pipelined(ctx, invs, unknown, replies, true)
	}
	return replies, err
}

// pipelined sends the invocations of the given places, with the source of each
// script the first time if teach is set, and notes the replies. It returns an
// error if none was answered.
func (s *Redis) pipelined(ctx context.Context, invs []invocation, places []int, replies []reply, teach bool) error {
	cmds := make([]once, len(places))
	taught := map[*script]bool{}
	pipe := s.client.Pipeline()
	for j, i := range places {
		inv := &invs[i]
		if teach && !taught[inv.script] {
			taught[inv.script] = true
			cmds[j] = inv.script.command(ctx, "eval", inv.script.source, inv.keys, inv.args)
		} else {
			cmds[j] = inv.script.evalsha(ctx, inv.keys, inv.args)
		}
		_ = pipe.Process(ctx, cmds[j])
	}
	_, err := pipe.Exec(ctx)
	answered := false
	for j, i := range places {
		value, err := cmds[j].Result()
		replies[i] = reply{value, err}
		answered = answered || err == nil || isReply(err)
	}
	if answered {
		return nil
	}
	return err
}

// isReply reports whether an error is the server's, about one command.
func isReply(err error) bool {
	var r redis.Error
	return errors.As(err, &r)
}
