// Package budget spends the allowance that an upstream gives, once for a whole
// fleet of processes: so many units a minute, so many calls at once, kept in
// Redis. A [Budget] is what [guard.Policy].Budget takes, and can be spent from
// directly.
//
// # What is promised
//
// In any time W, the units that are granted are at most Rate×W/Per + Burst, on
// Redis's clock, plus what single calls cost above Burst, what calls turned out
// to cost more than was spent for them, and what was refunded in W to calls that
// began before it. What an upstream counts is what arrives there: unequal delays
// on the way bunch calls up, so leave it some of its own tolerance. An upstream
// that allows N in any Per and not one more wants Rate plus Burst to be N.
//
// # Redis away
//
// A process that can't reach Redis goes on with its share: Rate and Burst
// divided by the processes that were last seen, starting with an empty purse, and
// with its part of a debt. The fleet then spends at most Rate×P/N, where P
// processes live on their share and N were seen, and a burst of at most Burst or
// one call for each of the P, whichever is more; and twice Burst around the moments
// when Redis goes and comes back. A process that has never reached Redis takes
// Options.Processes for N.
//
// A Redis that loses its data, evicts it, or fails over without the last of it,
// forgets what was spent and that there is a pause: Burst may be spent once more.
// Calls under way are told to it again within two seconds.
package budget
