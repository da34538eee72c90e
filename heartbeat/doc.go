// SPDX-License-Identifier: Apache-2.0

// Package heartbeat decides when to probe a connection that is silent, and when
// one is dead. It is pure policy: it does no I/O, has no clock and starts nothing.
// The owner of the connection tells it the time, asks it what to do next, and does
// that.
//
// A [Watch] tells three things apart that all look like silence. Thinking: a probe
// is answered, so the peer lives and has nothing to say yet; that is waited for
// without limit. Path down: a fresh connection to the peer cannot be made either,
// so there is nothing to gain by leaving; that is waited for, too. Dead flow: a
// fresh connection was made, and a probe on the old one, sent after that, stayed
// unanswered for the longer of [Config.DeadAfter] and twice the flow's own
// retransmission time-out. Only then it says [Leave].
//
// Any byte from the peer is life. A Watch is not safe for concurrent use: the one
// who owns the connection owns it.
package heartbeat
