package budget

import (
	"errors"
	"fmt"
	"time"

	"github.com/stampedeguard/stampede/guard"
)

// A Limit is what an upstream allows.
type Limit struct {
	// Rate is how many units may be spent in Per: at least 1. Required. A unit is
	// whatever the upstream counts: a call, a token, a cent.
	Rate int
	// Per is the time for Rate, from 1 ms to 366 days. Required.
	Per time.Duration
	// Burst is how many units may be spent at once after a quiet time, on top of
	// Rate. A call that costs more needs the whole burst, and leaves a debt.
	// Default 1: calls are spread evenly.
	Burst int
	// MaxInFlight is how many calls may be under way at once in the fleet. The
	// calls of a process that died are over when it was missed twice, or after
	// Options.SlotTTL. Default 0: no limit.
	MaxInFlight int
	// Reserve is the part of Burst that is kept for Critical calls: others see a
	// burst that is smaller by that, and Background one that is smaller by twice
	// that. No part of Rate is lost by it. From 0 to less than 0.5; below 0 there
	// is none. Default 0.2. It needs a Burst of a few calls to be felt.
	Reserve float64
}

// words say what is allowed: "60 in 1m0s, with a burst of 10".
func (l Limit) words() string {
	return fmt.Sprintf("%d in %v, with a burst of %d", l.Rate, l.Per, l.Burst)
}

func (l Limit) withDefaults() Limit {
	if l.Burst == 0 {
		l.Burst = 1
	}
	switch {
	case l.Reserve == 0:
		l.Reserve = 0.2
	case l.Reserve < 0:
		l.Reserve = 0
	}
	return l
}

// maxUnits bounds rates, bursts and costs: what an int holds everywhere, and a
// float64 with room to add.
const maxUnits = 1<<31 - 1

func (l Limit) validate() error {
	var errs []error
	units := func(name string, n, least int) {
		if n < least || n > maxUnits {
			errs = append(errs, fmt.Errorf("budget: Limit.%s is %d, must be from %d to %d", name, n, least, maxUnits))
		}
	}
	units("Rate", l.Rate, 1)
	units("Burst", l.Burst, 1)
	units("MaxInFlight", l.MaxInFlight, 0)
	if l.Per < time.Millisecond || l.Per > 366*24*time.Hour {
		errs = append(errs, fmt.Errorf("budget: Limit.Per is %v, must be from 1ms to 366 days", l.Per))
	}
	if !(l.Reserve >= 0 && l.Reserve < 0.5) {
		errs = append(errs, fmt.Errorf("budget: Limit.Reserve is %v, must be less than 0.5", l.Reserve))
	}
	return errors.Join(errs...)
}

// rate is units for each microsecond.
func (l Limit) rate() float64 { return float64(l.Rate) / float64(l.Per.Nanoseconds()) * 1e3 }

// capacity is the burst as callers of a priority see it.
func (l Limit) capacity(p guard.Priority) float64 {
	kept := 0.0
	switch p {
	case guard.Normal:
		kept = l.Reserve
	case guard.Background:
		kept = 2 * l.Reserve
	}
	return float64(l.Burst) * (1 - kept)
}

// cost makes what a caller says sane.
func cost(n int) int { return max(0, min(n, maxUnits)) }
