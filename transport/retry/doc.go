// SPDX-License-Identifier: Apache-2.0

// Package retry sends a request again while nothing of an answer has reached the
// app: a layer around an [http.RoundTripper].
//
// By default it sends again only what provably was not processed: errors of the
// way out say so with a method RequestSent that is false. The way out itself moves
// such a request to another connection at once; this layer adds the waits between
// what is left. All else is the operator's choice: answers by status
// ([Config.Statuses]), connections that broke after the request was sent and
// before a byte of its answer ([Config.Resets]), and a second attempt beside a slow
// first one ([Config.Hedge]).
//
// It refuses, whatever is configured: to send again once a byte of the answer or an
// interim answer other than 100 has come, after the answer to an upgrade, when the
// app has left or its deadline comes before the wait is over, when the body cannot
// be sent complete from its start, earlier than the upstream asked, and more often
// than the budget allows. A limit that passed while a connection was opened is not
// tried again: it took the time that there was. Nor is a refused certificate, an
// unknown name, an address that Warmwire refuses, or a full queue of its own.
//
// An unsent request whose error says, with a method Elsewhere that is true, that the next
// attempt would go to another endpoint, is tried again at once, whatever the first one's
// trouble was: within MaxAttempts and the budget.
//
// Waits: what the answer asks for, in any of its forms (see [hints.Asked]), plus a random
// part of up to half of it, or of half of BaseDelay where that is more: an upstream
// that says when is believed, and calls still do not line up. Without such a hint a
// random part of an exponential back-off, from nothing up ("full jitter"). An answer
// that asks for more than MaxDelay, or for more than is left of one and a half MaxDelay
// for all waits of a call, is passed on. X-Should-Retry: false forbids; true changes
// nothing: only a status that the operator named is tried again.
//
// The budget is one for the layer and counts over the last ten seconds: attempts
// beyond the first may be a share of the calls, or [Floor] where that is more. A
// request that the app itself sends again (X-Stainless-Retry-Count) is no new call,
// is taken from the same budget, and has so many attempts less, but always one.
//
// The body streams; what has passed is kept, up to ReplayBody, until the head of the
// answer arrives. An attempt gets all of it from the start or is not made. The app is
// never waited for twice: what it sends while an abandoned attempt still reads goes
// to the next one.
//
// Hedges: the percentile is learned over all calls of the layer that were answered well,
// short answers and long ones alike, and the first hundred only teach. A hedge is begun
// at most once a call, beside a body that is kept whole, and not after an interim
// answer; the loser is cancelled at once. A refusal does not win.
//
// The final answer is the server's own, untouched. After an attempt that may have
// been processed, every later failure says that the request was sent.
//
// [New] starts nothing. A hedge runs in a goroutine that ends when the way out has
// answered or was cancelled; [Transport.Close] waits for these. All methods are safe
// for concurrent use. Hooks of httptrace are called for each attempt in turn, never
// by an attempt that is over and never by a hedge.
package retry
