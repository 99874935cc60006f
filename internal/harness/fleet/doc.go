// Package fleet runs guards in real child processes that can be killed, frozen
// and asked, for tests, benchmarks and the chaos tool.
//
// Package spawn starts and ends the children; [Main] is to be called first thing
// in main or TestMain. protocol.go lists the messages of parent and child.
// All times are of the wall clock, which the processes of one machine share.
package fleet
