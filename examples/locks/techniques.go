package main

import (
	"context"
	_ "embed"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/lock"
)

// This file has the techniques that articles recommend, as they print them. Each function
// tries to take the lock once, and returns how to give it back. pause stands between two
// commands, where a process may be slow, or die.

//go:embed techniques.go
var source string

const name = "lock"

// A try is one attempt with the tools of one process.
type try struct {
	ctx   context.Context
	rdb   *redis.Client
	id    string // of the process
	clock func() time.Time
	pause func()
}

// A technique takes the lock, or returns a nil release.
type technique struct {
	name string
	take func(t *try) (release func() error, err error)
	// faults are those that it is known for.
	faults []string
}

var techniques = []technique{
	{"GET then SET", getThenSet, []string{"contention", "slow holder", "lost master"}},
	{"SETNX without TTL", setnx, []string{"killed holder", "lost master"}},
	{"SETNX then PEXPIRE", setnxThenPexpire, []string{"slow holder", "killed between commands", "lost master"}},
	{"MULTI SETNX PEXPIRE", multi, []string{"killed holder", "lost master"}},
	{"SETNX and GETSET with times", getset, []string{"slow holder", "clock 15 s off", "lost master"}},
	{"SETEX and RENAMENX", renamenx, []string{"slow holder", "late unlock", "lost master"}},
	{"WATCH", watch, []string{"slow holder", "late unlock", "lost master"}},
	{"SET NX PX, blind DEL", blindDel, []string{"slow holder", "late unlock", "lost master"}},
	{"spinlock on a set", sadd, []string{"killed holder", "lost master"}},
	{"INCR and DECR", incr, []string{"killed holder", "lost master"}},
	{"Lua SETNX and PEXPIRE", lua, []string{"slow holder", "late unlock", "lost master"}},
	{"SET NX PX, compare and delete", compareAndDelete, []string{"slow holder", "lost master"}},
	{"attempt counter", attemptCounter, []string{"slow holder", "lost master"}},
	{"paired worker", paired, []string{"contention", "lost master"}},
	{"stampede", nil, nil},
}

func getThenSet(t *try) (func() error, error) {
	if t.rdb.Get(t.ctx, name).Err() == nil {
		return nil, nil
	}
	t.pause()
	err := t.rdb.Set(t.ctx, name, t.id, ttl).Err()
	return func() error { return t.rdb.Del(t.ctx, name).Err() }, err
}

func setnx(t *try) (func() error, error) {
	ok, err := t.rdb.SetNX(t.ctx, name, t.id, 0).Result()
	if !ok {
		return nil, err
	}
	return func() error { return t.rdb.Del(t.ctx, name).Err() }, nil
}

func setnxThenPexpire(t *try) (func() error, error) {
	ok, err := t.rdb.SetNX(t.ctx, name, t.id, 0).Result()
	if !ok {
		return nil, err
	}
	t.pause()
	err = t.rdb.PExpire(t.ctx, name, ttl).Err()
	return func() error { return t.rdb.Del(t.ctx, name).Err() }, err
}

// Each attempt in vain renews the lock of a dead holder.
func multi(t *try) (func() error, error) {
	var set *redis.BoolCmd
	_, err := t.rdb.TxPipelined(t.ctx, func(p redis.Pipeliner) error {
		set = p.SetNX(t.ctx, name, t.id, 0)
		p.PExpire(t.ctx, name, ttl)
		return nil
	})
	if err != nil || !set.Val() {
		return nil, err
	}
	return func() error { return t.rdb.Del(t.ctx, name).Err() }, nil
}

// The value is when the lock ends, by the clock of its holder.
func getset(t *try) (func() error, error) {
	ends := strconv.FormatInt(t.clock().Add(ttl).UnixMilli(), 10)
	release := func() error { return t.rdb.Del(t.ctx, name).Err() }
	if ok, err := t.rdb.SetNX(t.ctx, name, ends, 0).Result(); ok || err != nil {
		return release, err
	}
	old, _ := t.rdb.Get(t.ctx, name).Int64()
	if old > t.clock().UnixMilli() {
		return nil, nil
	}
	t.pause()
	if before, _ := t.rdb.Do(t.ctx, "GETSET", name, ends).Int64(); before != old {
		return nil, nil
	}
	return release, nil
}

func renamenx(t *try) (func() error, error) {
	if err := t.rdb.Set(t.ctx, name+t.id, t.id, ttl).Err(); err != nil {
		return nil, err
	}
	t.pause()
	ok, err := t.rdb.RenameNX(t.ctx, name+t.id, name).Result()
	if !ok {
		return nil, err
	}
	return func() error { return t.rdb.Del(t.ctx, name).Err() }, nil
}

func watch(t *try) (func() error, error) {
	taken := errors.New("taken")
	err := t.rdb.Watch(t.ctx, func(tx *redis.Tx) error {
		if tx.Get(t.ctx, name).Err() == nil {
			return taken
		}
		t.pause()
		_, err := tx.TxPipelined(t.ctx, func(p redis.Pipeliner) error {
			return p.Set(t.ctx, name, t.id, ttl).Err()
		})
		return err
	}, name)
	if errors.Is(err, taken) || errors.Is(err, redis.TxFailedErr) {
		return nil, nil
	}
	return func() error { return t.rdb.Del(t.ctx, name).Err() }, err
}

func blindDel(t *try) (func() error, error) {
	ok, err := t.rdb.SetNX(t.ctx, name, t.id, ttl).Result()
	if !ok {
		return nil, err
	}
	return func() error { return t.rdb.Del(t.ctx, name).Err() }, nil
}

func sadd(t *try) (func() error, error) {
	n, err := t.rdb.SAdd(t.ctx, "locks", name).Result()
	if n == 0 {
		return nil, err
	}
	return func() error { return t.rdb.SRem(t.ctx, "locks", name).Err() }, nil
}

func incr(t *try) (func() error, error) {
	n, err := t.rdb.Incr(t.ctx, name).Result()
	release := func() error { return t.rdb.Decr(t.ctx, name).Err() }
	if n == 1 || err != nil {
		return release, err
	}
	t.pause()
	return nil, release()
}

func lua(t *try) (func() error, error) {
	const script = `if redis.call('SETNX', KEYS[1], ARGV[1]) == 1 then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0`
	n, err := t.rdb.Eval(t.ctx, script, []string{name}, t.id, ttl.Milliseconds()).Int()
	if n == 0 {
		return nil, err
	}
	return func() error { return t.rdb.Del(t.ctx, name).Err() }, nil
}

func compareAndDelete(t *try) (func() error, error) {
	const script = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
	ok, err := t.rdb.SetNX(t.ctx, name, t.id, ttl).Result()
	if !ok {
		return nil, err
	}
	return func() error { return t.rdb.Eval(t.ctx, script, []string{name}, t.id).Err() }, nil
}

// After so many attempts a job is left alone. A slow worker's attempt is counted as well as
// that of the worker beside it.
func attemptCounter(t *try) (func() error, error) {
	const maxAttempts = 1000
	if n, _ := t.rdb.Get(t.ctx, name+":attempts").Int(); n > maxAttempts {
		return nil, errors.New("too many attempts")
	}
	ok, err := t.rdb.SetNX(t.ctx, name, t.id, ttl).Result()
	if !ok {
		return nil, err
	}
	t.pause()
	if err := t.rdb.Incr(t.ctx, name+":attempts").Err(); err != nil {
		return nil, err
	}
	return func() error {
		if t.rdb.Get(t.ctx, name).Val() != t.id {
			return nil
		}
		return t.rdb.Del(t.ctx, name, name+":attempts").Err()
	}, nil
}

// Each worker of a pair shows that it lives, and does the work if the other does not.
func paired(t *try) (func() error, error) {
	alive, err := t.rdb.Keys(t.ctx, "alive:*").Result()
	if err != nil || len(alive) > 0 {
		return nil, err
	}
	t.pause()
	if err := t.rdb.Set(t.ctx, "alive:"+t.id, 1, ttl).Err(); err != nil {
		return nil, err
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(stopped)
		for {
			select {
			case <-time.After(ttl / 3):
				t.rdb.Set(t.ctx, "alive:"+t.id, 1, ttl)
			case <-stop:
				return
			}
		}
	}()
	return func() error {
		close(stop)
		<-stopped
		return t.rdb.Del(t.ctx, "alive:"+t.id).Err()
	}, nil
}

// stampede is ours, on one server or on several independent ones.
func stampede(clients []*redis.Client) (*lock.Locker, error) {
	var backends []lock.Backend
	for _, client := range clients {
		store, err := cache.NewRedis(client, cache.Options{Namespace: "example"})
		if err != nil {
			return nil, err
		}
		backends = append(backends, lock.On(store))
	}
	return lock.New(lock.Options{TTL: ttl, TakeOver: len(backends) == 1, Retry: 50 * time.Millisecond}, backends...)
}

// lines counts the lines of each function of this file.
func lines() map[string]int {
	fset, counts := token.NewFileSet(), map[string]int{}
	file, err := parser.ParseFile(fset, "techniques.go", source, 0)
	if err != nil {
		panic(err) // it was compiled
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			counts[f.Name.Name] = fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1
		}
	}
	return counts
}
