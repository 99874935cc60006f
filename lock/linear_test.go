package lock_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/lock"
)

// The sequential model is a mutex with a fence: a lock is granted while it is free, with a
// fence above the last one; it is refused while it is held; its release succeeds while its
// fence holds it.

type lockOp byte

const (
	opTry lockOp = iota
	opUnlock
	opByID
)

type lockInput struct {
	op    lockOp
	fence uint64 // opUnlock, opByID: of the grant
}

type lockOutput struct {
	ok    bool
	fence uint64 // opTry
}

type lockState struct {
	holder uint64 // fence; 0: free
	last   uint64
}

var lockModel = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(s, in, out any) (bool, any) {
		state, input, output := s.(lockState), in.(lockInput), out.(lockOutput)
		switch {
		case input.op == opTry && output.ok:
			return state.holder == 0 && output.fence > state.last, lockState{output.fence, output.fence}
		case input.op == opTry:
			return state.holder != 0, state
		case output.ok:
			return state.holder == input.fence, lockState{0, state.last}
		}
		return state.holder != input.fence, state
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

// A history is noted by clients at once.
type history struct {
	mu    sync.Mutex
	began time.Time
	ops   []porcupine.Operation
}

func (h *history) note(client int, in lockInput, f func() lockOutput) lockOutput {
	call := time.Since(h.began).Nanoseconds()
	out := f()
	end := time.Since(h.began).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
	return out
}

func TestHistoriesAreLinearizable(t *testing.T) {
	eachStore(t, func(t *testing.T, other func() cache.Store) {
		h := &history{began: time.Now()}
		var wg sync.WaitGroup
		for client := range 4 {
			l := newLocker(t, lock.Options{}, lock.On(other()))
			wg.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(client)))
				for range 60 {
					turn(t, h, l, client, random)
				}
			})
		}
		wg.Wait()
		if res, _ := porcupine.CheckOperationsVerbose(lockModel, h.ops, 20*time.Second); res != porcupine.Ok {
			t.Errorf("the history of %d operations is %v", len(h.ops), res)
		}
	})
}

// turn tries the lock, and gives it back in one of several ways.
func turn(t *testing.T, h *history, l *lock.Locker, client int, random *rand.Rand) {
	var k *lock.Lock
	h.note(client, lockInput{op: opTry}, func() lockOutput {
		var err error
		k, err = l.TryLock(t.Context(), "n")
		if err != nil && !errors.Is(err, lock.ErrHeld) {
			t.Error(err)
		}
		if k == nil {
			return lockOutput{}
		}
		return lockOutput{true, k.Fence()}
	})
	if k == nil {
		return
	}
	if random.IntN(2) == 0 {
		h.note(client, lockInput{opByID, k.Fence()}, func() lockOutput {
			held, err := l.Unlock(t.Context(), "n", k.ID())
			if err != nil {
				t.Error(err)
			}
			return lockOutput{ok: held}
		})
		return
	}
	h.note(client, lockInput{opUnlock, k.Fence()}, func() lockOutput {
		return lockOutput{ok: k.Unlock(t.Context()) == nil}
	})
}

func TestModelRefusesBrokenHistories(t *testing.T) {
	at := func(client int, call int64, in lockInput, out lockOutput) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: call + 1}
	}
	for name, ops := range map[string][]porcupine.Operation{
		"two holders":  {at(0, 0, lockInput{}, lockOutput{true, 1}), at(1, 2, lockInput{}, lockOutput{true, 2})},
		"fence falls":  {at(0, 0, lockInput{}, lockOutput{true, 2}), at(0, 2, lockInput{opUnlock, 2}, lockOutput{ok: true}), at(1, 4, lockInput{}, lockOutput{true, 1})},
		"unlock twice": {at(0, 0, lockInput{}, lockOutput{true, 1}), at(0, 2, lockInput{opUnlock, 1}, lockOutput{ok: true}), at(0, 4, lockInput{opUnlock, 1}, lockOutput{ok: true})},
		"held by none": {at(0, 0, lockInput{}, lockOutput{})},
	} {
		if porcupine.CheckOperations(lockModel, ops) {
			t.Errorf("%s: the model allows it", name)
		}
	}
}
