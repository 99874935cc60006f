package budget

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stampedeguard/stampede/cache"
	"github.com/stampedeguard/stampede/guard"
)

// A Limit is the allowance of an upstream.
type Limit struct {
	// Rate is the number of units for each Per: at least 1. A unit is one of the
	// upstream's own count: a call, a token, a cent. Required.
	Rate int
	// Per is the time for Rate, from 1 ms to 366 days. Required.
	Per time.Duration
	// Burst is the number of units that can be spent at once, on top of Rate. A call that
	// costs more needs the whole burst and leaves a debt. Default 1: calls are spread evenly.
	Burst int
	// MaxInFlight is the number of calls under way at once in the fleet. Those of a process
	// that died end when it was missed twice, or after Options.SlotTTL. Default 0: no limit.
	MaxInFlight int
	// Reserve is the part of Burst that is kept for Critical calls: Normal calls see a
	// burst smaller by that part, Background calls one smaller by twice that part. Rate
	// is not divided. Less than 0.5; below 0: no reserve. Default 0.2.
	Reserve float64
}

// Options configure [New]. The zero value of each field but Namespace means its
// default.
type Options struct {
	// Namespace starts the name of every key and channel: letters, digits and "._:-",
	// at most 128 bytes. It may equal the namespace of the application's store
	// ([cache.Options]). Two applications with one namespace and one budget name spend
	// one allowance: do that only if they call the same upstream with the same account.
	// Required.
	Namespace string

	// RedisTimeout bounds every call to Redis. After a timeout the process spends its
	// share. From 1 ms to a minute. Default 250 ms.
	RedisTimeout time.Duration

	// SlotTTL is the time after which a call counts as over for Limit.MaxInFlight if Redis
	// cannot tell whether its process lives: from 100 ms to an hour. Default 5 s.
	SlotTTL time.Duration

	// MaxPause bounds the pauses that an upstream asks for, to a day at most. Default 1 h.
	MaxPause time.Duration

	// Processes divide the limit while Redis has never been reached. Default 10.
	Processes int

	// Observer receives the budget's events. Default none.
	Observer cache.Observer
}

func (l Limit) withDefaults() Limit {
	l.Burst = cmp.Or(l.Burst, 1)
	l.Reserve = max(0, cmp.Or(l.Reserve, 0.2))
	return l
}

func (o Options) withDefaults() Options {
	o.RedisTimeout = cmp.Or(o.RedisTimeout, 250*time.Millisecond)
	o.SlotTTL = cmp.Or(o.SlotTTL, 5*time.Second)
	o.MaxPause = cmp.Or(o.MaxPause, time.Hour)
	o.Processes = cmp.Or(o.Processes, 10)
	return o
}

// maxUnits bounds rates, bursts and costs to numbers that an int holds everywhere and
// that a float64 can add without loss.
const maxUnits = 1<<31 - 1

func (l Limit) validate() error {
	errs := []error{
		between("Limit.Rate", l.Rate, 1, maxUnits),
		between("Limit.Per", l.Per, time.Millisecond, 366*24*time.Hour),
		between("Limit.Burst", l.Burst, 1, maxUnits),
		between("Limit.MaxInFlight", l.MaxInFlight, 0, maxUnits),
	}
	if !(l.Reserve >= 0 && l.Reserve < 0.5) {
		errs = append(errs, fmt.Errorf("budget: Limit.Reserve is %v, must be less than 0.5", l.Reserve))
	}
	return errors.Join(errs...)
}

func (o Options) validate() error {
	namespace := checkName("Options.Namespace", o.Namespace, "._:-")
	if o.Namespace == "" {
		namespace = errors.New("budget: Options.Namespace is empty: name the application, so that it does not share an allowance with another one on this Redis")
	}
	return errors.Join(
		namespace,
		between("Options.RedisTimeout", o.RedisTimeout, time.Millisecond, time.Minute),
		between("Options.SlotTTL", o.SlotTTL, 100*time.Millisecond, time.Hour),
		between("Options.MaxPause", o.MaxPause, time.Millisecond, 24*time.Hour),
		between("Options.Processes", o.Processes, 1, maxUnits),
	)
}

func between[T int | time.Duration](name string, v, least, most T) error {
	if v < least || v > most {
		return fmt.Errorf("budget: %s is %v, must be from %v to %v", name, v, least, most)
	}
	return nil
}

// checkName allows only bytes that cannot open or close a hash tag in a key.
func checkName(option, name, marks string) error {
	if name == "" || len(name) > 128 {
		return fmt.Errorf("budget: %s has %d bytes, must have 1 to 128", option, len(name))
	}
	for _, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte(marks, c) < 0 {
			return fmt.Errorf("budget: %s %q holds %q: only letters, digits and %q are allowed", option, name, c, marks)
		}
	}
	return nil
}

// rate is in units per microsecond.
func (l Limit) rate() float64 { return float64(l.Rate) / float64(l.Per.Nanoseconds()) * 1e3 }

// capacity is the burst that calls of a priority see.
func (l Limit) capacity(p guard.Priority) float64 {
	reserves := [...]float64{guard.Normal: 1, guard.Background: 2, guard.Critical: 0}
	return float64(l.Burst) * (1 - reserves[p]*l.Reserve)
}

// clampCost bounds the cost that a caller gives: a call that is told to cost more than the
// burst and a day's units, by mistake say, would stop all others for years.
func (l Limit) clampCost(n int) int {
	most := float64(l.Burst) + l.rate()*float64((24*time.Hour).Microseconds())
	return max(0, min(n, maxUnits, int(min(most, maxUnits))))
}
