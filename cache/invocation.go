package cache

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// An invocation is a script with its keys and arguments, put together once as the
// command that all who send it use.
type invocation struct {
	script *script
	words  []any // of EVALSHA, as the client takes them
}

// firstKey is where the keys begin among the words of a command.
const firstKey = 3

// invoke has the script carried out on so many keys, which are the first of the
// words, as strings; the rest are its arguments.
func (sc *script) invoke(keys int, words ...any) invocation {
	all := make([]any, 0, firstKey+len(words))
	return invocation{sc, append(append(all, "evalsha", sc.sha, keys), words...)}
}

// key is one by which the node is found.
func (inv *invocation) key() string { return inv.words[firstKey].(string) }

func (inv *invocation) args() []any { return inv.words[firstKey+inv.words[2].(int):] }

// command names the script by its digest, and needs a server that knows it.
func (inv *invocation) command(ctx context.Context) once { return newOnce(ctx, inv.words) }

// teaching is command with the script's source.
func (inv *invocation) teaching(ctx context.Context) once {
	words := slices.Clone(inv.words)
	words[0], words[1] = "eval", inv.script.source
	return newOnce(ctx, words)
}

func newOnce(ctx context.Context, words []any) once {
	cmd := once{redis.NewCmd(ctx, words...)}
	cmd.SetFirstKeyPos(firstKey)
	return cmd
}

// tryAgainWait is the pause before a command is resent that met a slot in
// migration.
const tryAgainWait = 10 * time.Millisecond

// run carries it out once, by itself, and returns the reply. It resends what meets a
// slot in migration for most of the time that ctx leaves, and not for all of it: that
// the slot was not there in time is to be the answer, and not that the node was not.
func (inv *invocation) run(ctx context.Context, client redis.UniversalClient) (any, error) {
	end, _ := ctx.Deadline()
	last := time.Now().Add(time.Until(end) * 3 / 4)
	for {
		value, err := inv.try(ctx, client)
		if err == nil || !redis.IsTryAgainError(err) || time.Now().After(last) || sleep(ctx, tryAgainWait) != nil {
			return value, err
		}
	}
}

// A processor carries a command out.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// try is run for those who don't wait for a slot.
func (inv *invocation) try(ctx context.Context, client processor) (any, error) {
	cmd := inv.command(ctx)
	err := client.Process(ctx, cmd)
	if isUnknownScript(err) {
		cmd = inv.teaching(ctx)
		err = client.Process(ctx, cmd)
	}
	return cmd.Val(), err
}

// isUnknownScript reports whether the server doesn't know the script by its
// digest, and so hasn't carried it out.
func isUnknownScript(err error) bool {
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") // which allocates, whatever it is given
}

// A reply is what a script of a pipeline answered.
type reply struct {
	value any
	err   error // the client's; nothing if it was answered
}

// runMany carries scripts out in one pipeline, each once. Those that the server
// doesn't know, and so hasn't carried out, are sent again, one of each kind with
// its source; and once more for each further server that slots have moved to. It
// returns an error if none was answered.
func (s *Redis) runMany(ctx context.Context, invs []invocation) ([]reply, error) {
	replies := make([]reply, len(invs))
	places := make([]int, len(invs))
	for i := range places {
		places[i] = i
	}
	err := s.pipelined(ctx, invs, places, replies, false)
	for range s.topo.all() {
		places = slices.DeleteFunc(places, func(i int) bool { return !isUnknownScript(replies[i].err) })
		if len(places) == 0 {
			break
		}
		err = s.pipelined(ctx, invs, places, replies, true)
	}
	return replies, err
}

// pipelined sends the invocations of the given places, with the source of each
// script the first time if teach is set, and notes the replies. It returns an
// error as runMany does.
func (s *Redis) pipelined(ctx context.Context, invs []invocation, places []int, replies []reply, teach bool) error {
	cmds := make([]once, len(places))
	taught := map[*script]bool{}
	pipe := s.client.Pipeline()
	for j, i := range places {
		inv := &invs[i]
		if teach && !taught[inv.script] {
			taught[inv.script] = true
			cmds[j] = inv.teaching(ctx)
		} else {
			cmds[j] = inv.command(ctx)
		}
		_ = pipe.Process(ctx, cmds[j])
	}
	_, failed := pipe.Exec(ctx)
	answered := false
	for j, i := range places {
		value, err := cmds[j].Result()
		if value == nil && err == nil {
			err = failed // every script answers something: a client's hook has kept it back
		}
		replies[i] = reply{value, err}
		answered = answered || err == nil || isAnswer(err)
	}
	if answered {
		return nil
	}
	return failed
}

// isAnswer reports whether an error is the server's, about one command: not one by
// which it turns away whatever comes, as while it loads its data.
func isAnswer(err error) bool {
	var r redis.Error
	return errors.As(err, &r) && !passing(r)
}
