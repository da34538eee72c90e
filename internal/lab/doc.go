// SPDX-License-Identifier: Apache-2.0

// Package lab measures what a bad network does to token streams: to clients that
// reach a model API directly, with the fixed limits that clients are given, and
// to clients that go through a Warmwire, all at the same time on the same path.
//
// A [Study] makes a network of two hosts, starts a server of token streams on
// one and a Warmwire as a process of its own on the other, and goes through
// scenarios: jitter, loss, blackouts, delay spikes, pauses of the model, a full
// queue, a NAT that forgets, a path and a flow that die. The server stamps each
// frame when it is sent, and the clients note when it comes, on one clock; what
// the path did is known, so that a cut can be told from a false alarm.
//
// Other scenarios are about heartbeats: silent streams, models that think, blackouts,
// full queues, NATs with idle limits and flows that die, for fixed heartbeats and
// for Warmwire's, at their usual pace and at a fixed one's, see [BeatArms]. They run
// side by side, each in a network of its own, because silence needs no machine. Packets
// are counted where they enter the network, doubts and verdicts by Warmwire itself.
// [Result.Missed] says which aims were missed.
//
// The clients are the ways that are compared, see [Arms]: each has connections of
// its own and reconnects at once when its stream is cut. What Warmwire gets of a
// connection is its own affair.
//
// It needs what package netlab needs. A Study runs for as long as [Length] says
// and ends early with its context; everything it started ends with it. Servers
// and clients run in this process: on a machine with much else to do, a frame
// can be late by that, which is why nothing here counts below a second except the
// first frame's delay.
package lab
