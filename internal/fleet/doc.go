// Package fleet runs guards in real child processes that can be killed, frozen
// and asked, for tests, benchmarks and the chaos tool.
//
// The parent starts its own executable again for each child: [Main], called
// first thing in main or TestMain, turns such a process into a child and
// returns at once in any other. Parent and child speak JSON lines over the
// child's standard input and output; protocol.go lists them. All times are of
// the wall clock, which the processes of one machine share.
//
// A child ends when its standard input does, and on Linux, frozen or not, when
// its parent dies in any way.
package fleet
