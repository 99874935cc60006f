package budget

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/outage"
)

// Each script is described at its head: keys, arguments, replies. All start
// with the state.
var (
	//go:embed lua/state.lua
	stateSource string
	//go:embed lua/spend.lua
	spendSource string
	//go:embed lua/settle.lua
	settleSource string
	//go:embed lua/learn.lua
	learnSource string
	//go:embed lua/beat.lua
	beatSource string
	//go:embed lua/leave.lua
	leaveSource string

	spendScript  = newScript(spendSource)
	settleScript = newScript(settleSource)
	learnScript  = newScript(learnSource)
	beatScript   = newScript(beatSource)
	leaveScript  = newScript(leaveSource)
)

type script struct{ source, sha string }

func newScript(source string) *script {
	source = stateSource + source
	sum := sha1.Sum([]byte(source))
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

// A once is a command that the client doesn't resend when its answer is lost:
// the cost would be spent twice.
type once struct{ *redis.Cmd }

// NoRetry overrides that of redis.Cmd.
func (once) NoRetry() bool { return true }

func (sc *script) run(ctx context.Context, rdb redis.UniversalClient, keys []string, args []any) (any, error) {
	send := func(verb, body string) (any, error) {
		all := make([]any, 0, 3+len(keys)+len(args))
		all = append(all, verb, body, len(keys))
		for _, k := range keys {
			all = append(all, k)
		}
		cmd := once{redis.NewCmd(ctx, append(all, args...)...)}
		cmd.SetFirstKeyPos(3)
		err := rdb.Process(ctx, cmd)
		return cmd.Val(), err
	}
	reply, err := send("evalsha", sc.sha)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = send("eval", sc.source)
	}
	return reply, err
}

// A report is what the scripts reply with, but for leave.
type report struct {
	first  int64 // verdict, or number of processes
	second int64 // microseconds to wait, or calls in flight
	level  float64
	paused time.Duration
	spent  int64
	allows int64 // what the upstream leaves; -1: it didn't say
	taken  int64 // when a grant was made, on Redis's clock; 0: see lua/state.lua
}

func readReport(reply any) (report, error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 7 {
		return report{}, fmt.Errorf("budget: a script replied %v", reply)
	}
	var n [7]int64
	for i := range list {
		if n[i], ok = list[i].(int64); !ok {
			return report{}, fmt.Errorf("budget: a script replied %v", reply)
		}
	}
	return report{n[0], n[1], float64(n[2]) / 1e3, micros(n[3]), n[4], n[5], n[6]}, nil
}

// micros is a time that a script told, made sane.
func micros(n int64) time.Duration {
	return time.Duration(max(0, min(n, (1000*24*time.Hour).Microseconds()))) * time.Microsecond
}

var errNilContext = errors.New("budget: nil context (use context.Background())")

var errTimeout = errors.New("budget: no answer, or no connection, in time (Options.RedisTimeout)")

// explain notes what a call came to, and names the Redis in its error: with the cause
// if the error doesn't say it.
func (b *Budget) explain(err error) error {
	switch {
	case err == nil:
		b.node.Answered()
		return nil
	case errors.Is(err, errTimeout), outage.SaysNothing(err):
		b.node.Silent(b.ctx, b.spawn, b.opts.RedisTimeout)
		return b.node.Explain(err)
	case !refused(err):
		b.node.Failed(err)
	}
	return b.node.Name(err)
}

// call runs a script, for at most RedisTimeout and until ctx ends. If its answer
// comes later it is given to late, if there is one. The client's own timeouts end
// what is under way then.
func (b *Budget) call(ctx context.Context, sc *script, keys []string, args []any, late func(report)) (report, error) {
	if ctx.Err() != nil {
		return report{}, context.Cause(ctx)
	}
	type answer struct {
		report report
		err    error
	}
	done := make(chan answer, 1)
	callCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.opts.RedisTimeout)
	if !b.spawn(func() {
		defer cancel()
		reply, err := sc.run(callCtx, b.rdb, keys, args)
		var a answer
		if a.err = err; err == nil {
			a.report, a.err = readReport(reply)
		}
		done <- a
	}) {
		cancel()
		return report{}, b.errClosed
	}
	timer := time.NewTimer(b.opts.RedisTimeout)
	defer timer.Stop()
	var err error
	select {
	case a := <-done:
		return a.report, b.explain(a.err)
	case <-timer.C:
		err = b.explain(errTimeout)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if late != nil {
		b.spawn(func() {
			if a := <-done; a.err == nil {
				late(a.report)
			}
		})
	}
	return report{}, err
}
