// SPDX-License-Identifier: Apache-2.0

// Package exchange asks one DNS resolver one question: over UDP with TCP behind
// it, over TCP, over TLS (RFC 7858) or over HTTPS (RFC 8484).
//
// [ParseSpec] reads how a resolver is written in the configuration, [Open] makes
// an [Exchanger] of it. An answer is checked against its question and handed on
// as plain data ([Answer]): the chain of aliases, the records at its end, and
// what a cache needs to keep them. A reply code such as NXDOMAIN or SERVFAIL is
// an answer; an error ([Error]) means that there was none.
//
// It refuses to choose: it caches nothing, asks no other resolver, shares no
// question between callers, and does not judge whether an address is good. It
// never resolves the name of its own resolver except through the function that
// it is given for that, so it cannot ask itself. It does not check signatures
// (DNSSEC); the AD bit is passed on, and is worth what the way to the resolver
// is worth.
//
// Nothing is dialled before the first question. All methods are safe for
// concurrent use. A stream way (TCP, TLS) keeps one connection with two
// goroutines, and HTTPS one connection of net/http, until it is idle for too
// long; Close ends all that, fails the questions in flight, and waits.
package exchange
