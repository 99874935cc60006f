package cache

import (
	"errors"
	"sync"
	"time"
)

// This file starts the store's goroutines, and ends them.

// spawn runs f in a goroutine that Close waits for; f must end soon after s.ctx
// does. It answers false, and does nothing, when the store has been closed.
func (s *Redis) spawn(f func()) bool { return s.spawnIn(&s.work, f) }

// spawnCall is spawn for a goroutine that may be stuck in the Redis client until
// the client's own timeouts end it. Close waits for it only for a while.
func (s *Redis) spawnCall(f func()) bool { return s.spawnIn(&s.calls, f) }

// parkedCalls goroutines of calls stay when there is no other.
const parkedCalls = 4

// spawnBrief is spawnCall for what is over soon, as a rule: the goroutine stays for
// another such call, as its stack has grown to what the client needs.
func (s *Redis) spawnBrief(f func()) bool {
	select {
	case s.next <- f:
		return true
	default:
	}
	return s.spawnCall(func() {
		for call := f; call != nil; call = s.nextCall() {
			call()
		}
	})
}

// nextCall waits for a call. It returns nil if enough goroutines do, or when the store
// ends.
func (s *Redis) nextCall() func() {
	defer s.parked.Add(-1)
	if s.parked.Add(1) > parkedCalls {
		return nil
	}
	select {
	case f := <-s.next:
		return f
	case <-s.ctx.Done():
		return nil
	}
}

func (s *Redis) spawnIn(wg *sync.WaitGroup, f func()) bool {
	s.spawning.RLock()
	defer s.spawning.RUnlock()
	if s.ended {
		return false
	}
	wg.Go(f)
	return true
}

// await ends the spawning of goroutines and waits for those there are.
func (s *Redis) await() error {
	s.cancel()
	s.spawning.Lock()
	s.ended = true
	s.spawning.Unlock()
	s.work.Wait()
	idle := make(chan struct{})
	go func() { // ends with the last call, at the latest by the client's timeouts
		s.calls.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-time.After(4 * s.opts.RedisTimeout):
		return errors.New("cache: Close: calls are still under way in the Redis client, its own timeouts will end them")
	}
}
