//go:build race

package sim_test

// manySeeds is less than without the race detector, which slows a seed down
// several times.
const manySeeds = 400
