// SPDX-License-Identifier: Apache-2.0

// Package mockapi is a model API that misbehaves on request, as an upstream for
// demonstrations, tests and benchmarks.
//
// It answers the OpenAI, Anthropic and Gemini protocols as their official
// clients expect them, on a plain address (HTTP/1.1 and HTTP/2 with prior
// knowledge) and on a TLS address with a certificate authority of its own. A
// request asks for pace and faults in header fields named Mock-…, or in the
// model's name after a question mark: "mock?tokens=50&gap=10ms&cut=3". Where a
// question mark does not fit, "mock;tokens=50,gap=10ms" says the same. The
// names are those of [Options].
//
// It refuses what it does not know: an unknown option is answered with 400 that
// names it. It checks no key and keeps no content; text is made from a seed
// that is taken from the request, so equal requests get equal answers. It uses
// no clock but package time and so runs inside a testing/synctest bubble when it
// is handed in-memory listeners.
//
// [New] starts nothing. [Server.Run] serves until its context ends and leaves
// nothing behind. All methods are safe for concurrent use.
package mockapi
