//go:build race

package sim_test

// manySeeds is less than without the race detector, which slows a seed down
// several times.
const manySeeds = 400

// lockSeeds is how many seeds of package lock are played.
const lockSeeds = 6
