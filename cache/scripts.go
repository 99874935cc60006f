package cache

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"

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
	//go:embed lua/seen.lua
	seenSource string

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
	seenScript    = newScript(seenSource)
)

// A script and its digest are strings, as words of a command.
type script struct{ source, sha any }

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
