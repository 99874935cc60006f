package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/nils"
)

// Plain keeps a lock as SET key id NX PX, and releases it by compare-and-delete, as the
// Redis manual describes: clients in other languages can share such locks. The key is the
// lock's name as it is, and its value the ID in hexadecimal. There are no fences, no
// wake-ups, no semaphores, and no check that a holder is alive.
//
// The client's own timeouts end a call to a server that does not answer. The client stays
// the caller's.
func Plain(client redis.UniversalClient) Backend {
	if nils.Is(client) {
		return broken{"lock: Plain: the client is nil"}
	}
	return plain{client}
}

type plain struct{ client redis.UniversalClient }

func (plain) String() string { return "redis" }

// A once is a command that the client does not resend when its answer is lost.
type once struct{ *redis.Cmd }

// NoRetry overrides that of redis.Cmd.
func (once) NoRetry() bool { return true }

const (
	plainRelease = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
	plainExtend  = `if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1`
)

// Acquire implements [Backend].
func (p plain) Acquire(ctx context.Context, r Request) (Grant, error) {
	if r.Holders != 1 {
		return Grant{}, errOneHolder
	}
	g := Grant{OK: true}
	up, err := p.set(ctx, &r, &g)
	switch {
	case errors.Is(err, redis.Nil):
		s, err := p.Inspect(ctx, r.Name, 1)
		if err != nil || len(s.Holders) == 0 {
			return Grant{Server: g.Server}, err
		}
		return Grant{Holder: s.Holders[0].ID, Left: s.Holders[0].Left, Server: g.Server}, nil
	case err != nil:
		return Grant{}, unavailable(r.Name, err)
	case r.Vote && up < r.TTL+time.Second: // the uptime is the difference of two times in whole seconds
		_, err := p.Release(ctx, Hold{Name: r.Name, ID: r.ID})
		return Grant{Abstains: true, Left: r.TTL + time.Second - up, Server: g.Server}, err
	}
	return g, nil
}

// set sends the SET, and asks for the server's name and uptime if they are needed.
func (p plain) set(ctx context.Context, r *Request, g *Grant) (up time.Duration, err error) {
	set := once{redis.NewCmd(ctx, "set", r.Name, r.ID.String(), "nx", "px", r.TTL.Milliseconds())}
	if !r.Vote {
		return 0, p.client.Process(ctx, set)
	}
	pipe := p.client.Pipeline()
	_ = pipe.Process(ctx, set)
	info := once{redis.NewCmd(ctx, "info", "server")}
	_ = pipe.Process(ctx, info)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	text, err := info.Text()
	if err != nil {
		return 0, err
	}
	g.Server, up = parseInfo(text)
	return up, set.Err()
}

func (p plain) compareAnd(ctx context.Context, script string, h *Hold) (bool, error) {
	cmd := once{redis.NewCmd(ctx, "eval", script, 1, h.Name, h.ID.String(), h.TTL.Milliseconds())}
	err := p.client.Process(ctx, cmd)
	return cmd.Val() == int64(1), unavailable(h.Name, err)
}

// parseInfo reads the server section of INFO.
func parseInfo(info string) (runID string, up time.Duration) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "run_id":
			runID = value
		case "uptime_in_seconds":
			s, _ := strconv.Atoi(value)
			up = time.Duration(s) * time.Second
		}
	}
	return runID, up
}

// Extend implements [Backend].
func (p plain) Extend(ctx context.Context, h Hold) (bool, error) {
	return p.compareAnd(ctx, plainExtend, &h)
}

// Release implements [Backend].
func (p plain) Release(ctx context.Context, h Hold) (bool, error) {
	return p.compareAnd(ctx, plainRelease, &h)
}

// Inspect implements [Backend].
func (p plain) Inspect(ctx context.Context, name string, _ int) (State, error) {
	pipe := p.client.Pipeline()
	get, left := pipe.Get(ctx, name), pipe.PTTL(ctx, name)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return State{}, unavailable(name, err)
	}
	if get.Err() != nil {
		return State{}, nil
	}
	id, _ := ParseID(get.Val())
	return State{Holders: []Holder{{ID: id, Left: max(0, left.Val())}}}, nil
}

// Watch implements [Backend]: nothing tells.
func (plain) Watch(string) (<-chan struct{}, func()) { return nil, func() {} }

// unavailable sorts an error of the client.
func unavailable(name string, err error) error {
	switch reply := redis.Error(nil); {
	case err == nil:
		return nil
	case strings.HasPrefix(err.Error(), "WRONGTYPE"):
		return fmt.Errorf("%w: %q (delete it, or give the lock another name): %w", ErrForeign, cut(name), err)
	case errors.As(err, &reply):
		return fmt.Errorf("lock: Redis refuses: %w", err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
