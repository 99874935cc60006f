//go:build !race

package sim_test

// manySeeds is what a run without flags plays.
const manySeeds = 2000

const raceDetector = false
