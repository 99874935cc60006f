package cache

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"time"

	"github.com/redis/go-redis/v9"
)

// Each script is described at its head: keys, arguments, replies.
var (
	//go:embed lua/acquire.lua
	acquireSource string
	//go:embed lua/fill.lua
	fillSource string
	//go:embed lua/fail.lua
	failSource string
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/extend.lua
	extendSource string
	//go:embed lua/set.lua
	setSource string
	//go:embed lua/delete.lua
	deleteSource string
	//go:embed lua/expire.lua
	expireSource string
	//go:embed lua/reset.lua
	resetSource string
	//go:embed lua/clock.lua
	clockSource string
	//go:embed lua/tie.lua
	tieSource string
	//go:embed lua/tag.lua
	tagSource string

	acquireScript = newScript(acquireSource)
	fillScript    = newScript(fillSource)
	failScript    = newScript(failSource)
	releaseScript = newScript(releaseSource)
	extendScript  = newScript(extendSource)
	setScript     = newScript(setSource)
	deleteScript  = newScript(deleteSource)
	expireScript  = newScript(expireSource)
	resetScript   = newScript(resetSource)
	clockScript   = newScript(clockSource)
	tieScript     = newScript(tieSource)
	tagScript     = newScript(tagSource)
)

type script struct{ source, sha string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

// A once is a command that the client doesn't resend when its answer is lost: a
// resent acquire that is carried out late brings a dead lease back to life.
// Replies that say that nothing was carried out (NOSCRIPT, MOVED, ASK,
// TRYAGAIN) are still followed.
type once struct{ *redis.Cmd }

// NoRetry overrides that of redis.Cmd.
func (once) NoRetry() bool { return true }

func (sc *script) command(ctx context.Context, verb, body string, keys []string, args []any) once {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, verb, body, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	all = append(all, args...)
	cmd := once{redis.NewCmd(ctx, all...)}
	cmd.SetFirstKeyPos(3)
	return cmd
}

func (sc *script) evalsha(ctx context.Context, keys []string, args []any) once {
	return sc.command(ctx, "evalsha", sc.sha, keys, args)
}

// tryAgainWait is the pause before a command is resent that met a slot in
// migration.
const tryAgainWait = 10 * time.Millisecond

// run carries the script out once and returns its reply.
func (sc *script) run(ctx context.Context, client redis.UniversalClient, keys []string, args ...any) (any, error) {
	for {
		cmd := sc.evalsha(ctx, keys, args)
		err := client.Process(ctx, cmd)
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			cmd = sc.command(ctx, "eval", sc.source, keys, args)
			err = client.Process(ctx, cmd)
		}
		if err != nil && redis.IsTryAgainError(err) && sleep(ctx, tryAgainWait) == nil {
			continue
		}
		return cmd.Val(), err
	}
}
