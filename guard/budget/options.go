package budget

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
)

// Options configure [New]. The zero value of each field but Namespace means its
// default.
type Options struct {
	// Namespace starts the name of every key and channel, so that applications can
	// share a Redis: letters, digits and "._:-", at most 128 bytes. It may be that of
	// the application's store ([cache.Options]). Two applications that use one
	// namespace, and one name for their budgets, spend one allowance: give them one
	// namespace only if they call the same upstream with the same account. Required.
	Namespace string

	// RedisTimeout bounds every call to Redis, after which the process lives on its
	// share: at least 1 ms. Default 250 ms.
	RedisTimeout time.Duration

	// SlotTTL is after how long the calls of a process that can't be asked after
	// count as over, with Limit.MaxInFlight: at least 100 ms. Slots are renewed at
	// a third of it. Default 5 s.
	SlotTTL time.Duration

	// MaxPause bounds what an upstream may ask for: an hour by default, a day at
	// most.
	MaxPause time.Duration

	// Processes is how many processes to share with while Redis has never been
	// reached. Default 10.
	Processes int

	// Observer is told of pauses, and of Redis going and coming back. Default none.
	Observer cache.Observer
}

func (o Options) withDefaults() Options {
	def(&o.RedisTimeout, 250*time.Millisecond)
	def(&o.SlotTTL, 5*time.Second)
	def(&o.MaxPause, time.Hour)
	def(&o.Processes, 10)
	return o
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o Options) validate() error {
	var errs []error
	between := func(name string, d, least, most time.Duration) {
		if d < least || d > most {
			errs = append(errs, fmt.Errorf("budget: Options.%s is %v, must be from %v to %v", name, d, least, most))
		}
	}
	if o.Namespace == "" {
		errs = append(errs, errors.New("budget: Options.Namespace is empty: name the application, so that it doesn't share an allowance with another one on this Redis"))
	} else {
		errs = append(errs, checkName("Options.Namespace", o.Namespace, "._:-"))
	}
	between("RedisTimeout", o.RedisTimeout, time.Millisecond, time.Minute)
	between("SlotTTL", o.SlotTTL, 100*time.Millisecond, time.Hour)
	between("MaxPause", o.MaxPause, time.Millisecond, 24*time.Hour)
	if o.Processes < 1 {
		errs = append(errs, fmt.Errorf("budget: Options.Processes is %d, must be at least 1", o.Processes))
	}
	return errors.Join(errs...)
}

// checkName allows what can stand in a key's name without opening or closing a
// hash tag.
func checkName(what, name, marks string) error {
	if name == "" || len(name) > 128 {
		return fmt.Errorf("budget: %s has %d bytes, must have 1 to 128", what, len(name))
	}
	for _, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte(marks, c) < 0 {
			return fmt.Errorf("budget: %s %q holds %q: only letters, digits and %q are allowed", what, name, c, marks)
		}
	}
	return nil
}
