// Package sim runs a small fleet of guards against one embedded Redis, in a
// bubble of fake time, and lets a seed decide everything that a network, a
// scheduler, a machine and an upstream decide in reality: what is delivered
// when, what is lost, who stalls, who dies, and what a fetch comes to. After
// every step it looks into the server and checks the promises of
// docs/protocol.md. One seed is one history, and replays. FoundationDB's
// simulator is the model (Zhou et al., SIGMOD 2021, section 4).
//
// Each process has a store, a client and a network of its own. Commands are
// held twice, before Redis carries them out and before their answer is
// delivered; the subscription's bytes are held frame by frame, both ways. The
// scheduler lets one thing happen and waits until nothing in the bubble can go
// on by itself (synctest.Wait), so that the order of events is the seed's and
// not the Go runtime's.
//
// Callers Get, Peek and change keys. In one seed of four they call GetMany too,
// over three or four keys in any order, which is checked as a Get of each key is;
// there pipelines are also torn, so that Redis carries out only the first of their
// commands, or only the first of their answers arrive. In three seeds of eight
// values carry tags, which are deleted and expired.
//
// What is left to the runtime, and how far a seed replays in spite of it, is
// told at [Run].
package sim
