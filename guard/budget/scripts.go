package budget

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var sources embed.FS

// The head of each script's file describes its keys, arguments and reply.
var (
	spendScript  = newScript("spend", "state", "inflight", "doubted")
	settleScript = newScript("settle", "state", "inflight")
	learnScript  = newScript("learn", "state")
	beatScript   = newScript("beat", "state", "inflight", "processes")
	leaveScript  = newScript("leave", "state", "inflight", "processes")
)

type script struct {
	source, sha string
	keys        []string // behind the budget's prefix
}

// newScript reads a script, which begins with the state.
func newScript(name string, keys ...string) *script {
	var source []byte
	for _, file := range []string{"state", name} {
		text, err := sources.ReadFile("lua/" + file + ".lua")
		if err != nil {
			panic(err) // the file is not embedded: each test finds that
		}
		source = append(source, text...)
	}
	sum := sha1.Sum(source)
	return &script{string(source), hex.EncodeToString(sum[:]), keys}
}

// A once is a command that the client does not resend when its answer is lost. A resent
// script would spend the cost twice.
type once struct{ *redis.Cmd }

// NoRetry overrides that of redis.Cmd.
func (once) NoRetry() bool { return true }

func (sc *script) run(ctx context.Context, rdb redis.UniversalClient, prefix string, args []any) (any, error) {
	send := func(verb, body string) (any, error) {
		all := []any{verb, body, len(sc.keys)}
		for _, k := range sc.keys {
			all = append(all, prefix+k)
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

// A report is the reply of a script.
type report struct {
	first  int64 // verdict, or number of processes
	second int64 // microseconds to wait, or calls in flight
	level  float64
	paused time.Duration
	spent  int64
	left   int64 // units that the upstream allows before reset
	reset  time.Duration
	taken  int64 // when a grant was made, on Redis's clock; 0: see lua/state.lua
}

func readReport(reply any) (report, error) {
	list, _ := reply.([]any)
	n := make([]int64, len(list))
	ok := len(n) == 8
	for i := range n {
		var isInt bool
		n[i], isInt = list[i].(int64)
		ok = ok && isInt
	}
	if !ok {
		return report{}, fmt.Errorf("budget: a script replied %v", reply)
	}
	return report{n[0], n[1], float64(n[2]) / 1e3, micros(float64(n[3])), n[4], n[5], micros(float64(n[6])), n[7]}, nil
}

// decimal has no exponent: not every Lua reads one without a point.
func decimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
