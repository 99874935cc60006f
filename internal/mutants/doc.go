// Package mutants breaks the library on purpose, one rule at a time, and reports
// whether a check finds it. A check that finds nothing proves nothing.
//
// A [Mutant] is a small patch of the library's source, in Go or Lua, together with
// the check that must fail with it. [Run] builds the check with the patch through
// the overlay of the go command, so that the working tree is never changed and the
// library has no switches for tests. [All] is the list.
//
// The list survives moved code: a patch names a folder, and its text may stand in
// any file of it. It does not survive changed code: a text that is not found
// exactly once is an error that names the mutant.
package mutants
