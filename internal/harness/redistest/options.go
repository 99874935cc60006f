package redistest

import (
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// clientOptions are those of every client this package makes. They send
// nothing on a new connection but HELLO, so that counts of commands are those
// of the code under test; all else is as go-redis has it by default.
func clientOptions(addr string) *redis.Options {
	return &redis.Options{
		Addr:                     addr,
		DisableIdentity:          true,
		MaintNotificationsConfig: noMaintNotifications(),
	}
}

// noMaintNotifications turns off a feature that only Redis Enterprise serves.
// Where it is on, the client may resolve the server's name, and starts
// goroutines of its own.
func noMaintNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}
