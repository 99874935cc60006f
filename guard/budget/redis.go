package budget

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/outage"
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

func (sc *script) run(ctx context.Context, rdb redis.UniversalClient, prefix string, args []any) (report, error) {
	send := func(verb, body string) ([]int64, error) {
		all := []any{verb, body, len(sc.keys)}
		for _, k := range sc.keys {
			all = append(all, prefix+k)
		}
		cmd := once{redis.NewCmd(ctx, append(all, args...)...)}
		cmd.SetFirstKeyPos(3)
		_ = rdb.Process(ctx, cmd)
		return cmd.Int64Slice()
	}
	n, err := send("evalsha", sc.sha)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		n, err = send("eval", sc.source)
	}
	if err == nil && len(n) != 8 {
		err = fmt.Errorf("budget: a script replied %v", n)
	}
	if err != nil {
		return report{}, err
	}
	return report{n[0], n[1], float64(n[2]) / 1e3, micros(float64(n[3])), n[4], n[5], micros(float64(n[6])), n[7]}, nil
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

// decimal has no exponent: not every Lua reads one without a point.
func decimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

var errTimeout = errors.New("budget: no answer, or no connection, in time (Options.RedisTimeout)")

// A server is the Redis that has the budget. It bounds calls in time and owns the
// budget's goroutines.
type server struct {
	rdb       redis.UniversalClient
	node      *outage.Node
	prefix    string // of keys and channels
	rate      string // first argument of all scripts
	timeout   time.Duration
	errClosed error

	ctx    context.Context // ends with close
	cancel context.CancelFunc

	mu     sync.Mutex // guards closed; held to start work
	closed bool
	work   sync.WaitGroup
}

// spawn runs f in a goroutine that close waits for. After close it returns false and
// runs nothing.
func (s *server) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Go(f)
	return true
}

// close ends ctx and waits for the goroutines. Calls that the client does not end in time
// are an error.
func (s *server) close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	s.mu.Unlock()
	idle := make(chan struct{})
	go func() { // ends with the last call, by the client's timeouts at the latest
		s.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-time.After(4 * s.timeout):
		return errors.New("calls are still under way in the Redis client, its own timeouts will end them")
	}
}

// wait returns nil after d or when early is ready, and an error when ctx ends or the
// budget is closed.
func (s *server) wait(ctx context.Context, d time.Duration, early <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-early:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.ctx.Done():
		return s.errClosed
	}
}

// call runs a script, for at most timeout and until ctx ends. The client's own timeouts
// end an abandoned call. If its report comes late, late receives it; late may be nil.
func (s *server) call(ctx context.Context, sc *script, late func(report), args []any) (report, error) {
	type answer struct {
		report report
		err    error
	}
	answers, left := make(chan answer), make(chan struct{})
	defer close(left)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	if !s.spawn(func() {
		defer cancel()
		r, err := sc.run(bounded, s.rdb, s.prefix, append([]any{s.rate}, args...))
		select {
		case answers <- answer{r, err}:
		case <-left:
			if err == nil && late != nil {
				late(r)
			}
		}
	}) {
		cancel()
		return report{}, s.errClosed
	}
	select {
	case a := <-answers:
		return a.report, s.explain(a.err)
	case <-bounded.Done():
		return report{}, s.explain(errTimeout)
	case <-ctx.Done():
		return report{}, context.Cause(ctx)
	}
}

// explain records the result of a call for the node, and adds the node and the cause to
// its error.
func (s *server) explain(err error) error {
	switch {
	case err == nil:
		s.node.Answered()
		return nil
	case errors.Is(err, errTimeout), outage.SaysNothing(err):
		s.node.Silent(s.ctx, s.spawn, s.timeout)
		return s.node.Explain(err)
	case !refused(err):
		s.node.Failed(err)
	}
	return s.node.Name(err)
}

// refused reports whether an error is a refusal by Redis that does not end by itself.
func refused(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) || strings.Contains(err.Error(), "-READONLY ") {
		return false
	}
	return !redis.IsLoadingError(err) && !redis.IsClusterDownError(err) && !redis.IsMasterDownError(err) &&
		!redis.IsReadOnlyError(err) && !redis.IsTryAgainError(err) && !redis.IsMaxClientsError(err) &&
		!redis.IsNoReplicasError(err) && !redis.IsOOMError(err) && !redis.HasErrorPrefix(err, "BUSY")
}
