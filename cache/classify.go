package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// classify sorts what the Redis client returned for op into a miss (nil),
// ErrRefused or ErrUnavailable. The caller's own context has been looked at
// before.
func classify(op string, err error) error {
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		return nil
	case errors.Is(err, ErrUnavailable), errors.Is(err, ErrRefused), errors.Is(err, ErrClosed):
		return err
	}
	if errors.Is(err, ErrDamaged) { // an answer, though not one of ours: a foreign value under our name
		return fmt.Errorf("%w: %s: %w", ErrRefused, op, err)
	}
	var reply redis.Error
	if errors.As(err, &reply) && !passing(reply) {
		return fmt.Errorf("%w: %s: %w", ErrRefused, op, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, op, err)
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

// tripsBreaker reports whether a classified error says that the node is away.
// A refusal is an answer, TRYAGAIN ends with the slot's migration, who lacks
// replicas takes no writes and answers reads, a slot that nobody serves is no
// node's, and the caller's own context says nothing about Redis.
func tripsBreaker(err error) bool {
	return errors.Is(err, ErrUnavailable) && !redis.IsTryAgainError(err) && !redis.IsNoReplicasError(err) &&
		!unserved(err) && !errors.Is(err, errBreakerOpen) && !errors.Is(err, errBusy)
}

// unserved reports whether a cluster has no node for the key's slot. The client asks
// any one then, which is well.
func unserved(err error) bool {
	return redis.IsClusterDownError(err) && strings.Contains(err.Error(), "Hash slot not served")
}

var (
	errBreakerOpen = fmt.Errorf("%w: the breaker is open, as calls before this one got no answer", ErrUnavailable)
	errBusy        = fmt.Errorf("%w: too many calls are under way (Options.MaxInFlight)", ErrUnavailable)
	errTimeout     = fmt.Errorf("%w: no answer, or no connection, in time (Options.RedisTimeout)", ErrUnavailable)
)

// errEndedBefore is wrapped around the cause of a context's end where nothing
// was sent.
var errEndedBefore = errors.New("cache: nothing was sent")

var errNilContext = errors.New("cache: nil context (use context.Background())")

// ended is the error of a context that is over, or missing; nil otherwise.
func ended(ctx context.Context) error {
	if ctx == nil {
		return errNilContext
	}
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
