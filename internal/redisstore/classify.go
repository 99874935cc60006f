package redisstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/stampedeguard/stampede/internal/store"
)

// classify sorts the client's error for op into a miss (nil), ErrRefused or
// ErrUnavailable. The caller's own context has been looked at before.
func classify(op string, err error) error {
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		return nil
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrRefused), errors.Is(err, store.ErrClosed):
		return err
	}
	if errors.Is(err, store.ErrDamaged) { // an answer, though not one of ours: a foreign value under our name
		return fmt.Errorf("%w: %s: %w", store.ErrRefused, op, err)
	}
	var reply redis.Error
	if errors.As(err, &reply) && !passing(reply) {
		return fmt.Errorf("%w: %s: %w", store.ErrRefused, op, err)
	}
	return fmt.Errorf("%w: %s: %w", store.ErrUnavailable, op, err)
}

// passing reports whether an error reply tells of a state that ends by itself:
// the server is starting, failing over, or resharding.
func passing(err error) bool {
	if redis.IsLoadingError(err) || redis.IsClusterDownError(err) || redis.IsMasterDownError(err) ||
		redis.IsReadOnlyError(err) || redis.IsTryAgainError(err) || redis.IsMaxClientsError(err) ||
		redis.IsNoReplicasError(err) {
		return true
	}
	for _, prefix := range []string{"MOVED ", "ASK ", "BUSY ", "UNKILLABLE "} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	// In a script an error reply is wrapped in one of the script's own.
	return strings.Contains(err.Error(), "-READONLY ")
}

// tripsBreaker reports whether a classified error says that the node is away. A refusal is
// an answer, TRYAGAIN ends with the slot's migration, a master without replicas answers
// reads, a slot without a node is no node's, and the caller's own context says nothing
// about Redis.
func tripsBreaker(err error) bool {
	return errors.Is(err, store.ErrUnavailable) && !redis.IsTryAgainError(err) && !redis.IsNoReplicasError(err) &&
		!unserved(err) && !errors.Is(err, errBreakerOpen)
}

// unserved reports whether a cluster has no node for the key's slot. The client asks any
// node then, which is well.
func unserved(err error) bool {
	return redis.IsClusterDownError(err) && strings.Contains(err.Error(), "Hash slot not served")
}

// isRefusal reports whether the server answered that it won't.
func isRefusal(err error) bool { return errors.Is(classify("", err), store.ErrRefused) }

// isAnswer reports whether an error is the server's, about one command: not one by which
// it turns every command away, as while it loads its data.
func isAnswer(err error) bool {
	var r redis.Error
	return errors.As(err, &r) && !passing(r)
}

var (
	errBreakerOpen  = fmt.Errorf("%w: the breaker is open, as calls before this one got no answer", store.ErrUnavailable)
	errTimeout      = fmt.Errorf("%w: no answer, or no connection, in time (Options.RedisTimeout)", store.ErrUnavailable)
	errUnsubscribed = fmt.Errorf("%w: the subscription of this process is not live", store.ErrUnavailable)
	errEndedBefore  = errors.New("cache: nothing was sent") // wrapped around the cause of a context's end
)
