// Package linear checks promise P3, that invalidation is a barrier, against
// histories of calls made by real processes on a real Redis while these are
// killed, frozen and cut off: model.go has what is checked and why it is the
// promise, load.go what the processes do, faults.go what is done to them.
//
// It is a harness for its own tests.
package linear
