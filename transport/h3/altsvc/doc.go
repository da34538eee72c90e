// SPDX-License-Identifier: Apache-2.0

// Package altsvc knows which origins offer HTTP/3, and which of them are better
// left to TCP for now.
//
// [Parse] reads the Alt-Svc field (RFC 7838). A [Memory] keeps what it and DNS
// records offer, and what became of trying it: an offer that fails while TCP works
// is broken for a pause that doubles with each failure; one whose streams stall
// again and again is demoted likewise; after the pause one trial is made in the
// background, and no call waits for it.
//
// It is pure policy: it does no I/O, has no clock, starts nothing and never logs.
// Whoever opens the connections tells it the time and what happened. It does not
// judge whether an offer is to be trusted: an alternative on another host must show
// the origin's certificate (RFC 7838 §2.1), which is its caller's to see to.
//
// A Memory is bounded: the origin that was not asked about for the longest makes
// room. All methods are safe for concurrent use.
package altsvc
