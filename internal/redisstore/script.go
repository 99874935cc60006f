package redisstore

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// Each script is described at its head: keys, arguments, replies.
//
//go:embed lua/*.lua
var sources embed.FS

var (
	acquireScript = newScript("acquire")
	fillScript    = newScript("fill")
	failScript    = newScript("fail")
	releaseScript = newScript("release")
	extendScript  = newScript("extend")
	setScript     = newScript("set")
	deleteScript  = newScript("delete")
	expireScript  = newScript("expire")
	resetScript   = newScript("reset")
	seenScript    = newScript("seen")
	clockScript   = newScript("clock")
	tieScript     = newScript("tie")
	tagScript     = newScript("tag")
)

// A script and its digest are strings, as words of a command.
type script struct{ source, sha any }

func newScript(name string) *script {
	source, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // it is part of the program
	}
	sum := sha1.Sum(source)
	return &script{source: string(source), sha: hex.EncodeToString(sum[:])}
}

// An invocation is a script with its keys and arguments: the words of an EVALSHA.
type invocation struct {
	script *script
	words  []any
}

// firstKey is where the keys begin among the words of a command.
const firstKey = 3

// invoke calls the script with so many keys, which are the first of the words, as strings or
// as keyArgs.
// The rest are its arguments.
func (sc *script) invoke(keys int, words ...any) invocation {
	return sc.invokeIn(make([]any, 0, firstKey+len(words)), keys, words...)
}

// invokeIn is invoke with memory for the words.
func (sc *script) invokeIn(memory []any, keys int, words ...any) invocation {
	return invocation{sc, append(append(memory, "evalsha", sc.sha, keys), words...)}
}

// key is one by which the node is found.
func (inv *invocation) key() string {
	if k, ok := inv.words[firstKey].(*keyArg); ok {
		return string(*k)
	}
	return inv.words[firstKey].(string)
}

// size is about the bytes of its arguments.
func (inv *invocation) size() (n int) {
	for _, arg := range inv.words[firstKey+inv.words[2].(int):] {
		switch b := arg.(type) {
		case []byte:
			n += len(b)
		case *bytesArg:
			n += len(*b)
		}
	}
	return n
}

// command names the script by its digest, or teaches it to the server.
func (inv *invocation) command(ctx context.Context, teach bool) once {
	words := inv.words
	if teach {
		words = slices.Clone(words)
		words[0], words[1] = "eval", inv.script.source
	}
	cmd := once{redis.NewCmd(ctx, words...)}
	cmd.SetFirstKeyPos(firstKey)
	return cmd
}

// A once is a command that the client does not resend when its answer is lost: a resent
// acquire that is carried out late brings a dead lease back to life. Replies that say that
// nothing was carried out (NOSCRIPT, MOVED, ASK, TRYAGAIN) are still followed.
type once struct{ *redis.Cmd }

// NoRetry overrides that of redis.Cmd.
func (once) NoRetry() bool { return true }

// scripts are invocations for one node, and their replies once the request is answered. No
// script looks at another one's keys, so those that go together might have been sent in
// any order.
type scripts struct {
	all     []invocation
	replies []reply
	late    lateReader // nil: none
	memory  [1]reply   // of the replies, if the script goes alone
}

// A lateReader deals with replies that come after the request was left.
type lateReader interface{ answeredLate(late []reply) }

type lateFunc func(late []reply)

func (f lateFunc) answeredLate(late []reply) { f(late) }

// A reply is the answer of a script.
type reply struct {
	value any
	err   error // the client's; nil if it was answered
}

const (
	// A batch of scripts is full with so many, or with so many bytes: enough to share the
	// cost of a round trip, and few enough that the server has the next while the callers of
	// one go on.
	fullScripts     = 16
	fullScriptBytes = 64 << 10
)

func newScriptQueue(n *node) *queue {
	return newQueue(n, batchLimits{weight: fullScripts, bytes: fullScriptBytes, full: 6, side: 2, few: 2 * fullScripts}, n.sendScripts)
}

// A scriptCall is a request that carries scripts out.
type scriptCall struct {
	request
	scripts
	one [1]invocation // the memory of all, if it is one
}

// scriptRequest is a request that carries scripts out. Nil: there is no late reader.
func scriptRequest(late lateReader, all ...invocation) *request {
	return (&scriptCall{}).of(late, all...)
}

// of is scriptRequest with its memory, which is zero.
func (c *scriptCall) of(late lateReader, all ...invocation) *request {
	c.late, c.all = late, append(c.one[:0], all...)
	c.request.scripts, c.weight = &c.scripts, len(all)
	for i := range all {
		c.bytes += all[i].size()
	}
	return &c.request
}

// sendScripts carries the scripts of all requests out in one pipeline, each once. Those
// that the server does not know, and so has not carried out, are sent again, one of each
// kind with its source; and once more for each further server that slots have moved to.
func (n *node) sendScripts(ctx context.Context, pipe redis.Pipeliner, rs []*request) error {
	all := make([]*invocation, 0, fullScripts)
	for _, r := range rs {
		for i := range r.scripts.all {
			all = append(all, &r.scripts.all[i])
		}
	}
	replies := rs[0].scripts.memory[:]
	if len(all) > 1 {
		replies = make([]reply, len(all))
	}
	places := make([]int, 0, fullScripts)
	for i := range all {
		places = append(places, i)
	}
	unknown := func() bool {
		places = slices.DeleteFunc(places, func(i int) bool { return !isUnknownScript(replies[i].err) })
		return len(places) > 0
	}
	err := n.pipeline(ctx, pipe, all, places, replies, false)
	if unknown() {
		for range n.s.topo.all() {
			if err = n.pipeline(ctx, pipe, all, places, replies, true); !unknown() {
				break
			}
		}
	}
	for _, r := range rs {
		k := len(r.scripts.all)
		r.scripts.replies, replies = replies[:k:k], replies[k:]
	}
	return classify("script", err)
}

// pipeline sends the invocations of the given places, with the source of each script the
// first time if teach is set, and notes the replies. It returns an error if none was
// answered.
func (n *node) pipeline(ctx context.Context, pipe redis.Pipeliner, all []*invocation, places []int, replies []reply, teach bool) error {
	cmds := make([]once, 0, fullScripts)
	var taught map[*script]bool
	if teach {
		taught = map[*script]bool{}
	}
	for _, i := range places {
		cmds = append(cmds, all[i].command(ctx, teach && !taught[all[i].script]))
		if teach {
			taught[all[i].script] = true
		}
	}
	var failed error
	if len(cmds) == 1 {
		failed = n.s.client.Process(ctx, cmds[0])
	} else {
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd)
		}
		_, failed = pipe.Exec(ctx)
	}
	answered := false
	for j, i := range places {
		value, err := cmds[j].Result()
		if value == nil && err == nil {
			err = failed // every script answers something: a client's hook has kept it back
		}
		replies[i] = reply{value, err}
		answered = answered || err == nil || isAnswer(err) || notCarriedOut(err)
	}
	if answered {
		return nil
	}
	return failed
}

// call carries one script out and returns its answer.
func (s *core) call(ctx context.Context, op string, inv invocation, late lateReader) (any, fate, error) {
	return s.callIn(&scriptCall{}, ctx, op, inv, late)
}

// callIn is call with memory for the request.
func (s *core) callIn(memory *scriptCall, ctx context.Context, op string, inv invocation, late lateReader) (any, fate, error) {
	n, err := s.topo.node(inv.key())
	if err != nil {
		return nil, notSent, err
	}
	r := memory.of(late, inv)
	fate, err := n.scripts.do(ctx, r)
	if fate != gotAnswer {
		return nil, fate, err
	}
	if err != nil {
		return nil, fate, err
	}
	answer := s.settled(ctx, n, inv, r.scripts.replies[0], late)
	return answer.value, fate, n.classify(op, answer.err)
}

// tryAgainWait is the pause before a script is resent that met a slot in migration.
const tryAgainWait = 10 * time.Millisecond

// settled resends a script that was certainly not carried out, for most of RedisTimeout:
// that its slot was not there in time is to be the answer, and not that the node was not.
func (s *core) settled(ctx context.Context, n *node, inv invocation, a reply, late lateReader) reply {
	for end := time.Now().Add(s.opts.RedisTimeout * 3 / 4); notCarriedOut(a.err) && time.Now().Before(end); {
		if redis.IsTryAgainError(a.err) && sleep(ctx, tryAgainWait) != nil {
			break
		}
		moved, err := s.topo.node(inv.key())
		if err != nil {
			return reply{err: err}
		}
		r := scriptRequest(late, inv)
		if _, err = moved.scripts.do(ctx, r); err != nil {
			return reply{err: err}
		}
		a = r.scripts.replies[0]
	}
	return a
}

// ttlArg keeps an expiry positive: Redis refuses zero.
func ttlArg(d time.Duration) int64 { return max(1, d.Milliseconds()) }

// optional is a token as an argument: empty if there is none.
func optional(t store.Token) any {
	if t.IsZero() {
		return ""
	}
	return slices.Clone(t[:]) // t itself would be allocated for none, too
}

// flag is a truth as an argument.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// rides reports whether an entry rides in its wake-up, as an argument.
func rides(entry []byte) int { return flag(len(entry) <= store.MaxMessageBody) }

// isUnknownScript reports whether the server does not know the script by its digest, and
// so has not carried it out.
func isUnknownScript(err error) bool {
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") // which allocates, whatever it is given
}

// notCarriedOut reports whether the server said so.
func notCarriedOut(err error) bool {
	return err != nil && slices.ContainsFunc([]string{"NOSCRIPT", "MOVED", "ASK", "TRYAGAIN"}, func(prefix string) bool {
		return redis.HasErrorPrefix(err, prefix)
	})
}

// fields reads a script's array reply and keeps the first error.
type fields struct {
	reply any
	err   error
}

func (f *fields) at(i int) any {
	all, ok := f.reply.([]any)
	if !ok || i >= len(all) {
		f.err = errors.Join(f.err, fmt.Errorf("%w: reply %T has no field %d", store.ErrDamaged, f.reply, i))
		return nil
	}
	return all[i]
}

func (f *fields) text(i int) string {
	s, _ := f.at(i).(string)
	return s
}

func (f *fields) number(i int) int64 {
	n, _ := f.at(i).(int64)
	return n
}

// decimal is a number that is written as text.
func (f *fields) decimal(i int) uint64 {
	n, err := strconv.ParseUint(f.text(i), 10, 64)
	if err != nil {
		f.err = errors.Join(f.err, fmt.Errorf("%w: field %d: %w", store.ErrDamaged, i, err))
	}
	return n
}

func (f *fields) millis(i int) time.Duration {
	return time.Duration(max(0, f.number(i))) * time.Millisecond
}

func (f *fields) token(i int) store.Token {
	s := f.text(i)
	if len(s) != store.TokenSize {
		f.err = errors.Join(f.err, fmt.Errorf("%w: token of %d bytes", store.ErrDamaged, len(s)))
		return store.Token{}
	}
	return store.Token([]byte(s))
}
