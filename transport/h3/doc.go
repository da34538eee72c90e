// SPDX-License-Identifier: Apache-2.0

// Package h3 is one client connection of HTTP/3 (RFC 9114), on QUIC and QPACK of
// quic-go.
//
// An [Endpoint] has the process's UDP sockets, one for each family of addresses;
// [Endpoint.Dial] opens a connection, and [Conn.RoundTrip] sends requests over it.
// A stream's receive window is the buffer of its answer: the library holds what
// has come and opens the window as the app reads. Uploads are sent by [Class], and
// what is urgent is told to the peer (RFC 9218). When the network changes,
// [Endpoint.Move] takes the connections along.
//
// HTTP/3 itself is here and not quic-go's http3, which breaks what this way out
// promises: its client ends a body without an error when the stream ends inside a
// DATA frame, does not tell of GOAWAY and lets requests above its id wait, ends a
// request after five 1xx, and can neither send PRIORITY_UPDATE nor tell the peer's
// limits.
//
// It refuses to queue: a request beyond the peer's limit of streams, or after
// GOAWAY, fails at once as provably unsent. It never sends a request twice: early
// data that the server refuses, and 425 Too Early (RFC 8470), are the caller's to
// judge, and no request after [Conn.WaitReady] is early. It adds no field that the
// request does not have (but the priority, if configured), decodes no content,
// takes no server push, keeps nothing alive by itself, never logs, resolves no
// name, and remembers nothing about origins: see package altsvc.
//
// A connection has five goroutines besides the library's, which end when it does:
// by [Conn.Close], by [Conn.Shutdown] once nothing is in flight, or by the peer. A
// request has none but the one that reads its body, which ends when the body's
// Read does. An answer is read by the goroutine that waits in RoundTrip, and then
// by the one that reads its Body; what of it is not read when the connection ends
// is lost.
//
// All methods are safe for concurrent use. A response's Body has one reader at a
// time, and may be closed at any time. The httptrace hooks are called by the
// goroutine in RoundTrip, WroteRequest by the one that reads the request's body.
package h3
