// Package budget spends the allowance of an upstream once for a whole fleet of
// processes: so many units a minute and so many calls at once, counted in Redis. A
// [Budget] is a value for [guard.Policy].Budget, and programs can spend from it
// directly.
//
// # Promise
//
// In any time W, the granted units are at most Rate×W/Per + Burst, on Redis's clock,
// plus the part of a single call's cost above Burst, plus the costs that a Settle
// adds, plus refunds in W to calls that began before W. An upstream counts arrivals:
// unequal network delays bunch calls up, so leave some of its tolerance unused. For an
// upstream that allows N in any Per and not one more, Rate plus Burst must be N.
//
// # Redis away
//
// A process that can't reach Redis spends its share: Rate and Burst divided by the
// number of processes last seen, starting with an empty share, and with its part of a
// debt. The fleet then spends at most Rate×P/N, where P processes spend shares and N
// were seen. A burst is at most Burst or one call for each of the P, the larger of the
// two, and twice Burst around the moments when Redis goes and comes back. A process
// that has never reached Redis takes Options.Processes for N.
//
// A Redis that loses its data to a crash, an eviction or a failover forgets spent units
// and pauses: Burst may be spent once more. Processes report their calls under way
// again within two seconds.
package budget
