// SPDX-License-Identifier: Apache-2.0

// Package heartbeat decides when to probe a connection that is silent, and when
// one is dead. It is pure policy: it does no I/O, has no clock and starts nothing.
// The owner of the connection tells it the time, asks it what to do next, and does
// that.
//
// # Verdicts
//
// Several things look like silence. Thinking: a probe is answered, so the peer
// lives and has nothing to say yet; that is waited for without limit. Path down: a
// fresh connection to the peer cannot be made either, so there is nothing to gain by
// leaving; that is waited for, too. Dead flow: a fresh connection was made, and a
// probe on the old one, sent after that, stayed unanswered for the longer of 3 s and
// what the kernel needs to send again and be answered: its time-out and a round trip, or
// twice the time-out where no round trip is known. Only then it says [Leave]. A probe
// that is late, whatever late means, does no more than ask for a fresh connection.
// Any byte from the peer is life, and so is an acknowledgement by its kernel of what
// was sent after the probe, where the owner sees those; but a peer that has answered
// probes before and leaves them to its kernel for 40 s is judged by its answers alone:
// its process is stuck.
//
// # What to use
//
// A [Watch] follows a connection while something is asked on it, by a plan of fixed
// times. A [Beat] keeps a long-lived connection that can be probed: a leg of a
// WebSocket, an idle HTTP/2 or QUIC connection, one to a DNS resolver. Its interval
// comes from its [Path]: half of the silence that flows are known to outlive on it.
// A Path learns that from deaths, downwards, and upwards by a spare connection, one
// that serves nobody and is left silent for longer and longer (mode [Spare]);
// [Limits] keeps the paths of a process and carries them over a restart. The
// connections of a path probe in the same moments, so that a radio wakes once, and
// ask for one fresh connection together.
//
// Time-outs come from the round trips of the connection itself, an [RTT]: smoothed
// and spread as RFC 6298 says, and never below the tail of recent ones. A late probe
// doubles the next time-out.
//
// # What it refuses
//
// It never says that a peer is dead because a time passed. A peer that has never
// answered a probe and whose kernel is not seen to acknowledge is not left at all.
// What happens while our own side is blocked or asleep counts for nothing. A
// connection beside which none can be made, the app's own, is left after [Unanswered]
// probes and 30 s: twice what a blackout of 4 s and a queue of 3 s can do to TCP
// together. A peer that refuses probes is probed half as often from then on, whatever
// the path may need.
//
// # Concurrency and limits
//
// A Watch, a Beat and an RTT are not safe for concurrent use: the one who owns the
// connection owns them. A Path and Limits are. A Beat is about half a KiB and
// allocates nothing; Limits keeps as many paths as it is made for, those used last.
package heartbeat
