//go:build race

package sim_test

// manySeeds is less than without the race detector, which slows a seed down
// several times. Its findings are data races: TestSimSameSeedIsTheSameHistory plays more
// seeds, by the same rules, without it.
const manySeeds = 150

// lockSeeds is how many seeds of package lock are played.
const lockSeeds = 6
