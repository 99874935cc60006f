//go:build race

package main_test

// raceFlag builds the program as the tests were built.
const raceFlag = "-race"
