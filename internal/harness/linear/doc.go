// Package linear checks promise P3, that invalidation is a barrier, against
// histories of calls made by real processes on a real Redis while these are
// killed, frozen and cut off: model.go has the check and why it is the promise,
// load.go the calls of the processes, faults.go the faults.
//
// It is a harness for its own tests.
package linear
