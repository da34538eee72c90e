// SPDX-License-Identifier: Apache-2.0

// Package measure is an honest stopwatch for streamed model calls.
//
// A [Runner] sends calls in the protocol of OpenAI (chat, Responses, realtime),
// Anthropic or Gemini, at a fixed concurrency or with Poisson arrivals, to one
// address or to two in turn, and hands each [Result] to its caller. A [Summary]
// folds results into distributions, [WriteTable], [Summary.MarshalJSON] and
// [WriteSVG] show them, and [FitCurve] fits the latency curve to them. The
// definitions of all quantities are in docs/measure.md.
//
// It refuses to guess: a call that did not end as its protocol says is no
// success however much of it arrived, and a parameter of the curve that the
// data do not determine is reported as such. It never sends a
// call again that may have reached the server, never skips the verification of a certificate, and puts no header value, query
// value or body into a result or an error. It imports nothing of the product,
// so that it cannot share the product's mistakes.
//
// Nothing runs before [Runner.Run], which returns once every call has ended.
// Results are handed over one at a time. A Summary is not safe for concurrent
// use. Reading of events, arrivals, statistics, fit and plot use neither clock
// nor network.
package measure
