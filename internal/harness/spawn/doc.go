// Package spawn runs this program's own executable again, as child processes
// that can be killed and frozen, for tests and the chaos tool.
//
// [Start], in the parent, starts a child of a given name. [Main], called with
// that name first thing in main or TestMain, turns such a process into the child
// and returns at once in any other. Their messages are lines of JSON,
// over the child's standard input and output.
//
// A child's standard input ends with its parent. On Linux so does the child,
// frozen or not, in whatever way the parent dies.
package spawn
